"""What differs between the kinds of connections: psycopg's, and SQLAlchemy's connections and sessions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence.errors import NotEnforced
from sinkfence_postgres import sessions
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:  # what the user doesn't use isn't imported, and needn't be installed
    import psycopg
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    AnyTx = psycopg.Connection[Any] | sqlalchemy.Connection | Session | scoped_session[Any]
    Tx = TypeVar("Tx", bound=AnyTx)

SESSION: Final = "sqlalchemy.orm:Session"
SESSIONS: Final = (SESSION, "sqlalchemy.ext.asyncio:AsyncSession")
KINDS: Final = ("psycopg:Connection", "sqlalchemy:Connection", SESSION)
TWOPHASE: Final = "sqlalchemy:TwoPhaseTransaction"
SCOPED: Final = ("sqlalchemy.orm:scoped_session", "sqlalchemy.ext.asyncio:async_scoped_session")

DRIVERS: Final = ("psycopg", "psycopg_async", "psycopg2", "asyncpg")
"""Of SQLAlchemy, by its names."""

TWO_PHASE: Final = (
    "a prepared transaction of an owner that is gone keeps its successor from arming without end: "
    "use no two-phase commit here"
)

IDLE, ACTIVE, INTRANS, INERROR = range(4)
"""PQTransactionStatusType of libpq, as psycopg and psycopg2 report it."""


def is_a(thing: object, *kinds: str) -> bool:
    """Whether thing is an instance of one of the classes, each "module:name". Imports nothing."""
    names = [kind.split(":") for kind in kinds]
    return isinstance(thing, tuple(getattr(sys.modules[m], name) for m, name in names if m in sys.modules))


def expect(thing: Any, *kinds: str) -> Any:
    """Return thing, or the session behind a scoped one; raise TypeError if it is of none of the kinds."""
    if is_a(thing, *SCOPED):
        thing = thing()
    if not is_a(thing, *kinds):
        raise TypeError(
            f"expected one of {', '.join(kinds).replace(':', '.')}, "
            f"not {type(thing).__module__}.{type(thing).__qualname__} "
            "(sinkfence_postgres takes the synchronous kinds, sinkfence_postgres.aio the others)"
        )
    return thing


def is_psycopg(tx: object) -> bool:
    """Whether this is a connection of psycopg."""
    return is_a(tx, "psycopg:Connection", "psycopg:AsyncConnection")


def run(tx: Any, query: Query) -> list[Any]:
    """Send one statement, wait for the server's verdict on all of it, and return its rows.

    Raises:
        NotEnforced: something between here and the server has answered less than was asked.
    """
    if is_psycopg(tx):
        import psycopg
        from psycopg.rows import tuple_row

        # Not the connection's own cursor_factory, whose placeholders may be others. Nothing is prepared: a
        # transaction pooler may hand the next statement to another server process.
        with psycopg.Cursor(tx, row_factory=tuple_row) as cursor:
            cursor.execute(query.pyformat.encode(), query.params, prepare=False)
            sync(tx)
            return complete(query, cursor.fetchall() if cursor.description else [])
    from sqlalchemy import text

    # The options of a call override those of the connection and its engine. These may ask for a server-side
    # cursor, which works out a row when it is fetched: only the first token would be guarded.
    options = {"stream_results": False, "yield_per": None}
    result = core(tx).execute(text(query.sql), dict(query.params), execution_options=options)
    return complete(query, list(result.all()) if result.returns_rows else [])


def complete(query: Query, rows: list[Any]) -> list[Any]:
    """Return the rows of the answer; raise NotEnforced unless every one is here."""
    if query.rows is not None and len(rows) != query.rows:
        raise NotEnforced(f"{query.rows} answers were to come from the server, and {len(rows)} came")
    return rows


def sync(tx: Any) -> None:
    """In psycopg's pipeline mode: wait for all that was sent, and raise what the server has refused of it.

    Until then neither errors nor the transaction's status have arrived.
    """
    if is_psycopg(tx) and tx.info.pipeline_status:
        with tx.pipeline() as pipeline:
            pipeline.sync()


def core(tx: Any) -> sqlalchemy.Connection:
    """Return the connection of a SQLAlchemy connection or session."""
    conn: sqlalchemy.Connection = tx.connection() if is_a(tx, SESSION) else tx
    known(conn.dialect)
    return conn


def known(dialect: Any) -> None:
    """Raise TypeError for a driver whose errors aren't known: its refusals would not be told as such."""
    if dialect.driver not in DRIVERS:
        raise TypeError(
            f"{dialect.name}+{dialect.driver} is not supported here: "
            "use postgresql+psycopg, postgresql+psycopg2 or, in sinkfence_postgres.aio, postgresql+asyncpg"
        )


def is_open(tx: Any) -> bool:
    """Whether a transaction is open, on any kind, asynchronous ones included."""
    if is_psycopg(tx):
        return tx.info.transaction_status in (ACTIVE, INTRANS, INERROR)
    return bool(tx.in_transaction())


def is_dead(conn: Any) -> bool:
    """Whether the driver has found the connection broken, on any kind, asynchronous ones included."""
    return bool(conn.closed if is_psycopg(conn) else conn.invalidated)


def autocommits(tx: Any) -> bool:
    """Whether the next statement would be a transaction of its own."""
    if is_psycopg(tx):
        return bool(tx.autocommit) and tx.info.transaction_status == IDLE
    return bool(getattr(core(tx).connection.dbapi_connection, "autocommit", False))


def on_server(tx: Any) -> bool | None:
    """Whether the driver knows of an open transaction, whatever SQLAlchemy does; None: it doesn't tell."""
    driver: Any = core(tx).connection.driver_connection
    if asyncpg := getattr(driver, "is_in_transaction", None):
        return bool(asyncpg())
    known = status(driver)
    return None if known is None else known != IDLE


def refuse_open(tx: Any) -> None:
    """Raise NotEnforced if a transaction is open: it may hold earlier writes, and isn't ours to commit.

    A session may be bound to a connection on which one is open: its commit would then be none.
    """
    if is_open(tx) or (is_a(tx, *SESSIONS) and sessions.joined(tx)):
        raise NotEnforced(
            "a transaction is open here already: commit it or roll it back first, "
            "or guard it with guard(tx, bearer) and commit it yourself"
        )


def refuse_unfit(tx: Any) -> None:
    """Raise NotEnforced where a guard would not reach what is written, or not the end of it."""
    if autocommits(tx):
        raise NotEnforced(
            "in autocommit a guard protects nothing, each statement is a transaction of its own: "
            "turn it off, or on psycopg use transaction(conn, bearer)"
        )
    # psycopg has no public name for it.
    prepares = getattr(tx, "_tpc", None) if is_psycopg(tx) else is_a(core(tx).get_transaction(), TWOPHASE)
    if prepares:
        raise NotEnforced(TWO_PHASE)
    if is_a(tx, SESSION):
        sessions.refuse_second_connection(tx)


def begun(tx: Any) -> Any:
    """Return the driver's own block, which refuses a commit inside; COMMIT at a clean end, else ROLLBACK.

    In a pipeline psycopg's block ends with a sync: COMMIT has been answered.
    """
    return tx.transaction() if is_psycopg(tx) else tx.begin()


def savepoint(tx: Any) -> Any:
    """Return the driver's own block inside an open transaction, which an exception undoes."""
    return tx.transaction() if is_psycopg(tx) else tx.begin_nested()


def flush(tx: Any) -> None:
    """Write what a session still holds back: it belongs before the last look at its transaction."""
    if is_a(tx, SESSION):
        tx.flush()


def status(driver: Any) -> int | None:
    """Return what libpq knows of the transaction; None for a driver without libpq."""
    return getattr(getattr(driver, "info", None), "transaction_status", None)
