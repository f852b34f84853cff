"""A statement inside the caller's own transaction: provisional until the caller commits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from sinkfence.stores.sql.connections import RETRYABLE, sqlstate, text
from sinkfence.stores.sql.dialects import Query, Row


def fetch_in(conn: Any, query: Query) -> Sequence[Row]:
    """Run a query on a Connection or Session of SQLAlchemy, or on a psycopg connection.

    The driver's errors pass through, as the transaction is the caller's to repeat; those after which it can
    be say so in a note.

    Raises:
        TypeError: anything else, an asynchronous connection among it.
    """
    execute = getattr(conn, "execute", None)
    if execute is None or inspect.iscoroutinefunction(execute):
        raise TypeError(
            f"conn must be a synchronous SQLAlchemy or psycopg connection, not {type(conn).__name__}"
        )
    try:
        if hasattr(conn, "get_bind") or isinstance(conn, sa.Connection):  # get_bind: a Session, scoped or not
            rows: Sequence[Row] = execute(text(query.sql), query.params).all()
            return rows
        if not type(conn).__module__.startswith("psycopg"):
            raise TypeError(f"conn must be an SQLAlchemy or psycopg connection, not {type(conn).__name__}")
        from psycopg.rows import tuple_row

        with conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(re.sub(r":(\w+)", r"%(\1)s", query.sql), query.params)
            fetched: Sequence[Row] = cursor.fetchall()
            return fetched
    except Exception as error:
        if sqlstate(error) in RETRYABLE:
            error.add_note("retryable: roll back and run the whole transaction again")
        raise
