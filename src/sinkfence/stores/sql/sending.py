"""How a query goes over a connection of the store's own: by psycopg itself where that is the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sinkfence.stores.sql.dialects import Query, Row

OUTDATED: Final = {"0A000", "25006"}
"""0A000: somebody has altered the table, and the prepared statement would have other columns by now. 25006:
this server may only be read from; if it was the primary before, a new connection leads to the present one."""
UNPREPARED: Final = {"26000", "42P05"} | OUTDATED
"""26000, 42P05: the session has no such prepared statement, or has that name already, as somebody has meddled
with it; or the statement is outdated. The server says so before it executes anything, so that it may be sent
again: over another connection, as over this one psycopg would hear the same each time."""
_CURSOR: Final = "sinkfence.cursor"


def send(connection: sa.Connection, query: Query) -> Sequence[Row]:
    """Return a query's rows. Errors are SQLAlchemy's, whoever sends.

    To compile, send and read in SQLAlchemy's own way takes three times as long as psycopg does; its pool and
    its errors are what we want of it.
    """
    if connection.dialect.driver != "psycopg":
        try:
            rows: Sequence[Row] = connection.execute(text(query.sql), query.params).all()
        except DBAPIError as failed:
            _drop(connection, failed)
            raise
        return rows
    cursor = _cursor(connection, query)
    try:
        # Many rows are worth a plan of their own: what costs there is not the planning.
        cursor.execute(pyformat(query.sql), query.params, prepare=False if query.many else None)
        fetched: Sequence[Row] = cursor.fetchall()
    except connection.dialect.loaded_dbapi.Error as error:
        raise _translated(connection, query, error) from error
    except BaseException:  # interrupted, whatever the server is at: a signal's handler may raise anything
        connection.invalidate()
        raise
    return fetched


@lru_cache(64)
def text(sql: str) -> sa.TextClause:
    """Return the clause of a statement. There are few, and finding the places in one takes a while."""
    return sa.text(sql)


@lru_cache(64)
def pyformat(sql: str) -> str:
    """Return a query's text with psycopg's places in it."""
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def sqlstate(error: Exception) -> str | None:
    """Return the server's code (PostgreSQL manual, appendix A), under whichever name the driver has it."""
    own = getattr(error, "orig", error)
    # SQLAlchemy's error of a plan that is outdated has lost asyncpg's code.
    told = own, getattr(own, "__cause__", None)
    codes = (getattr(each, name, None) for each in told for name in ("sqlstate", "pgcode"))
    return next((code for code in codes if code), None)


def _cursor(connection: sa.Connection, query: Query) -> Any:
    """Return the cursor that lives as long as its connection: making one costs as much as using it."""
    from psycopg.rows import tuple_row

    driver: Any = connection.connection.driver_connection
    if query.many:  # whose rows would live as long
        return driver.cursor(row_factory=tuple_row)
    cursor = connection.info.get(_CURSOR)
    if cursor is None or cursor.connection is not driver:
        cursor = connection.info[_CURSOR] = driver.cursor(row_factory=tuple_row)
    return cursor


def _translated(connection: sa.Connection, query: Query, error: Exception) -> BaseException:
    """Return SQLAlchemy's error for one of psycopg's, and drop what it shows to be of no more use.

    If this connection was lost, assume that the pooled ones were too: drop them all.
    """
    dialect = connection.dialect
    ended = dialect.is_disconnect(error, connection.connection.driver_connection, None)  # type: ignore[arg-type]
    _drop(connection, error, ended=ended)
    return DBAPIError.instance(
        query.sql,
        None,  # a result that somebody completes a job with has no place in an error's text
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=ended,
        dialect=dialect,
    )


def _drop(connection: sa.Connection, error: Exception, *, ended: bool = False) -> None:
    """Drop this connection if the error shows it to be of no more use, and the pooled ones that are like it.

    Whoever has altered the table, or demoted the server, has done so for all of them, which may be more than
    there are attempts.
    """
    if ended or sqlstate(error) in UNPREPARED:
        connection.invalidate(error)
    if ended or sqlstate(error) in OUTDATED:
        connection.engine.dispose()
