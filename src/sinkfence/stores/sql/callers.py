"""A statement inside the caller's own transaction: provisional until the caller commits."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from sinkfence.stores.sql.attempts import RETRYABLE
from sinkfence.stores.sql.dialects import Query, Row
from sinkfence.stores.sql.sending import pyformat, sqlstate, text


def fetch_in(conn: Any, query: Query) -> Sequence[Row]:
    """Run a query on a Connection or Session of SQLAlchemy, or on a psycopg connection.

    The driver's errors pass through, as the transaction is the caller's to repeat; those after which it can
    be say so in a note.

    Raises:
        TypeError: anything else, an asynchronous connection among it.
    """
    with noted():
        if kind_of(conn, "synchronous") == "sqlalchemy":
            rows: Sequence[Row] = conn.execute(text(query.sql), query.params).all()
            return rows
        import psycopg
        from psycopg.rows import tuple_row

        # Not the connection's own cursor_factory, whose placeholders may be others.
        with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
            cursor.execute(pyformat(query.sql).encode(), query.params)
            fetched: Sequence[Row] = cursor.fetchall()
            return fetched


def kind_of(conn: Any, wanted: Literal["synchronous", "asynchronous"]) -> Literal["sqlalchemy", "psycopg"]:
    """Return whose connection it is, or raise TypeError."""
    execute = getattr(conn, "execute", None)
    if execute is not None and inspect.iscoroutinefunction(execute) == (wanted == "asynchronous"):
        # Of a Session, scoped or not; of a Connection.
        if hasattr(conn, "get_bind") or hasattr(conn, "exec_driver_sql"):
            return "sqlalchemy"
        if type(conn).__module__.startswith("psycopg"):
            return "psycopg"
    raise TypeError(f"conn must be an {wanted} SQLAlchemy or psycopg connection, not {type(conn).__name__}")


@contextmanager
def noted() -> Generator[None]:
    """Surround a statement, and note on its error whether the whole transaction may be run again."""
    try:
        yield
    except Exception as error:
        if sqlstate(error) in RETRYABLE:
            error.add_note("retryable: roll back and run the whole transaction again")
        raise
