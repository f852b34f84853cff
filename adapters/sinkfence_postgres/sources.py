"""Where a sink's own connections come from: an engine, a pool, or a connection string."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from sinkfence_postgres import connections
from sinkfence_postgres.connections import ACTIVE, IDLE

if TYPE_CHECKING:
    from sqlalchemy import Engine

KINDS: Final = ("builtins:str", "sqlalchemy:Engine", "psycopg_pool:ConnectionPool")
ASYNC_KINDS: Final = (
    "builtins:str",
    "sqlalchemy.ext.asyncio:AsyncEngine",
    "psycopg_pool:AsyncConnectionPool",
)


def checked(source: Any, *kinds: str) -> Any:
    """Return the source of connections if it is of one of the kinds.

    Raises:
        TypeError: it is of none, or an engine of another driver than psycopg, psycopg2 and asyncpg.
        ValueError: it is a connection string, and can't be read; it is not shown.
        ImportError: it is a connection string, and psycopg is not installed.
    """
    if isinstance(source, str) and "+" in source.partition("://")[0]:
        raise TypeError("this looks like a URL of SQLAlchemy: pass create_engine(url), or a URI of libpq")
    if isinstance(source, str) and importlib.util.find_spec("psycopg") is None:
        raise ImportError("a connection string needs psycopg: pip install 'sinkfence[postgres]'")
    if isinstance(source, str) and not readable(source):
        # Else libpq would say so at the first call, and show the part that it can't read: maybe a password.
        raise ValueError(
            'this is no connection string of libpq: write "postgresql://user:password@host:port/database", '
            "with what is special in a password percent-encoded (@ is %40), or "
            "\"host=… dbname=… password='…'\"; it is not shown, for it may have a password in it"
        )
    connections.expect(source, *kinds)
    dialect: Any = getattr(source, "dialect", None)
    if dialect is not None:
        connections.known(dialect)
    return source


def readable(conninfo: str) -> bool:
    """Whether libpq makes sense of a connection string, and takes no part of a password for an address."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.Error:
        return False
    host, port = str(found.get("host", "")), str(found.get("port", ""))
    # A host that begins with @ is an abstract socket.
    return "@" not in host[1:] and re.fullmatch(r"[\d,]*", port) is not None


def renewal(source: Any, *, demoted: bool) -> Callable[[], Any] | None:
    """Return what takes the dead connections out of a pool, or all of them where its server was demoted."""
    # SQLAlchemy's pool lets go of dead connections by itself. psycopg_pool has `drain` since 3.3.
    names = ("dispose", "drain", "check") if demoted else ("check",)
    return next((found for name in names if (found := getattr(source, name, None))), None)


def connection(source: Any) -> AbstractContextManager[Any]:
    """Give a connection of the source; one that is made of a connection string is closed at the end."""
    if isinstance(source, str):
        import psycopg

        return psycopg.connect(source)
    return connected(source) if hasattr(source, "dialect") else source.connection()


@contextmanager
def connected(engine: Engine) -> Generator[Any]:
    """Give a connection of an engine, which drops it after a call that a signal's handler has broken into.

    The driver is at that call still, and refuses the rollback with which SQLAlchemy takes a connection back.
    Its complaint would take the place of what the handler raised.
    """
    with engine.connect() as conn:
        try:
            yield conn
        except BaseException as error:
            usable = not (conn.closed or conn.invalidated)
            if usable and connections.status(conn.connection.driver_connection) == ACTIVE:
                conn.invalidate(error)
            raise


@contextmanager
def alone(conn: Any) -> Generator[Any]:
    """Put the connection into autocommit: each statement is a transaction of its own, ended by its answer."""
    if not connections.is_psycopg(conn):
        yield conn.execution_options(isolation_level="AUTOCOMMIT")  # undone when it goes back to its pool
        return
    before = conn.autocommit
    conn.autocommit = True
    try:
        yield conn
    finally:
        # Not after a signal's handler: the driver is at a call still, and would complain. A pool drops it.
        if connections.status(conn) == IDLE:
            conn.autocommit = before
