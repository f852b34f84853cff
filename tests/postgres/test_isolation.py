"""Kinds of transactions: isolation levels by each kind of writer, read-only, two-phase, with many jobs."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa

from sinkfence.errors import NotEnforced, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, aio, guard, transaction
from sinkfence_postgres.refusals import repeatable


def test_a_strict_isolation_refuses_as_well(strict, token, write):
    """The newest owner commits. A stale start is StaleToken; an old snapshot at COMMIT is 40001."""
    strict.admin.execute("truncate entry")
    strict.arm(token())
    write(token(), "in time", to=strict)
    with pytest.raises(Exception) as caught:
        write(token(), "late", between=lambda: strict.arm(token(1)), to=strict)
    assert repeatable(caught.value)
    with pytest.raises(StaleToken):
        write(token(), between=pytest.fail, to=strict)
    assert strict.notes() == ["in time"]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_owners_that_have_nothing_in_common_do_not_fail_each_other(own_db, token, isolation):
    """Transactions of two jobs commit side by side, also where the planner knows how small the tables are."""
    one, other = token(job_id="one"), token(job_id="other")
    own_db.arm(one)
    own_db.arm(other)
    own_db.admin.execute("vacuum analyze sinkfence.sealed, sinkfence.mark")
    with own_db.engine() as shared:
        engine = shared.execution_options(isolation_level=isolation)
        with engine.connect() as first, engine.connect() as second:
            guard(first, one)
            guard(second, other)
            first.commit()
            second.commit()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_read_only_transaction_is_told_to_do_without(db, token, isolation):
    """It writes nothing that could be refused, and its guard would have to write: NotEnforced says so."""
    db.arm(token())
    with db.connect() as conn:
        conn.execute(f"set session characteristics as transaction isolation level {isolation}, read only")
        conn.commit()
        with pytest.raises(NotEnforced, match="read-only"), transaction(conn, token()):
            pytest.fail("entered")
    with db.engine() as engine, engine.connect() as conn:
        conn.execution_options(postgresql_readonly=True, isolation_level=isolation)
        with pytest.raises(NotEnforced, match="read-only"):
            guard(conn, token())


def test_what_turns_read_only_after_its_guard_is_refused(db, token):
    """The check inside COMMIT can't be made there: the driver's error says why, and nothing was applied."""
    db.arm(token())
    with db.connect() as conn:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), transaction(conn, token()):
            conn.execute("insert into entry (note) values ('written')")
            conn.execute("set transaction read only")
    assert db.notes() == []


def test_a_server_that_is_read_only_can_not_be_armed(db, token):
    """As a standby is: arm on the primary."""
    read_only = PostgresSink(f"{db.dsn}?options=-cdefault_transaction_read_only%3Don")
    with pytest.raises(NotEnforced, match="on the primary"):
        read_only.arm(token())


@pytest.mark.parametrize("half", ["sync", "async"])
def test_two_phase_commit_of_psycopg_is_refused(db, token, half):
    """A prepared transaction would outlive its owner, and keep every successor from arming."""
    db.arm(token())

    async def run():
        async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
            await conn.tpc_begin("sinkfence")
            try:
                await aio.guard(conn, token())
            finally:
                await conn.tpc_rollback()

    with pytest.raises(NotEnforced, match="two-phase"):
        if half == "async":
            db.run(run())
        with db.connect() as conn:
            conn.tpc_begin("sinkfence")
            try:
                guard(conn, token())
            finally:
                conn.tpc_rollback()


def test_a_thousand_jobs_in_one_transaction(db, token):
    """As many as are allowed: they commit together, and one that is stale refuses them all."""
    job = token().job_id
    tokens = [Token(f"{job}/{n}", 1, "o") for n in range(1000)]
    db.admin.execute("select sinkfence.arm(%s || '/' || n, 1, 'o') from generate_series(0, 999) n", (job,))
    with db.connect() as conn, transaction(conn, *tokens):
        conn.execute("insert into entry (note) values ('all')")
    with db.connect() as conn, pytest.raises(StaleToken) as caught, transaction(conn, *tokens):
        conn.execute("insert into entry (note) values ('none')")
        db.arm(Token(f"{job}/123", 2, "p"))
    assert caught.value.token == tokens[123]
    assert db.notes() == ["all"]


def test_an_engine_with_an_isolation_of_its_own(db, token):
    """The level that SQLAlchemy sets when it begins holds for the guard, too."""
    db.arm(token())
    with db.engine() as shared:
        engine = shared.execution_options(isolation_level="SERIALIZABLE")
        with engine.connect() as conn, transaction(conn, token()):
            assert conn.scalar(sa.text("show transaction_isolation")) == "serializable"
            conn.execute(sa.text("insert into entry (note) values ('serial')"))
    assert db.notes() == ["serial"]
