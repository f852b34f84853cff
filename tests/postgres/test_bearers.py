"""What is given in place of a bearer."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from sinkfence_postgres import PostgresSink, fenced_execute, once, transaction

ENTRY = sa.table("entry", sa.column("text"), sa.column("generation"))


@pytest.mark.parametrize("wrong", [None, "invoice-42", 7])
def test_what_is_no_bearer_is_a_type_error(db, wrong):
    """Whoever passes a lease's job_id, or nothing, is told before anything is sent."""
    with db.engine() as engine, engine.connect() as conn:
        calls = (
            lambda: PostgresSink(engine).arm(wrong),
            lambda: transaction(conn, wrong).__enter__(),
            lambda: once(conn, wrong, "total", lambda: None),
            lambda: fenced_execute(conn, sa.update(ENTRY), wrong),
        )
        for call in calls:
            with pytest.raises(TypeError, match="a bearer is a lease or a token, not a"):
                call()
        assert not conn.in_transaction()
