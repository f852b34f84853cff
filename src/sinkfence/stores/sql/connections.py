"""The store's own connections to its database: how an engine of its own is made, and a transaction on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from sinkfence.stores.sql.sessions import listen

T = TypeVar("T")

TIMEOUTS: Final[Mapping[str, int]] = {"connect_timeout": 5}
"""How long psycopg tries to connect, in seconds, and not for its 130."""

DRIVERS: Final = {"psycopg", "psycopg_async", "psycopg2", "asyncpg"}
"""Whose errors have the server's code: without it nothing tells what may be sent again."""

POOL: Final[Mapping[str, int]] = {"pool_size": 15, "max_overflow": 0}
"""As many as SQLAlchemy's default allows, and kept: it opens and closes the last ten for each statement."""


def engine_for(source: str | sa.URL | sa.Engine, *, spare: int = 0) -> sa.Engine:
    """Return an engine of the store's own, in autocommit; nothing is connected yet.

    An engine that is passed says where the database is, how to log in, and how long to try (psycopg's
    connect_timeout). Its pool is not used: a body that has all its connections in use must not keep the
    heartbeat waiting for one. `spare`: for how many more it must have room, however small that pool is.

    Raises:
        ValueError: neither PostgreSQL nor an SQLite file, a driver that is none of `DRIVERS` or is
            asynchronous, a pool that shares, or a schema_translate_map.
        ImportError: the driver is not installed.
    """
    options: dict[str, Any]
    if isinstance(source, sa.Engine):
        url, options = source.url, {"pool": pool_like(source, spare)}
    else:
        url = full_url(source)
        arguments: dict[str, Any] = {"timeout": 5.0}
        if url.get_backend_name() == "postgresql":
            arguments = {k: v for k, v in TIMEOUTS.items() if k not in url.query}
        options = {"connect_args": arguments, **POOL}
    engine = make_engine(sa.create_engine, url, options)
    if engine.dialect.is_async:
        raise ValueError(f"{url.drivername} is asynchronous: use postgresql+psycopg here")
    listen(engine)
    return engine


def pool_like(engine: sa.Engine, spare: int = 0) -> sa.Pool:
    """Return a pool of our own that connects as this engine does, with room for so many connections more.

    Raises:
        ValueError: it has one connection for all threads, whose statements and transactions would mix; or
            another schema than its connections have, which two tenants would share the leases for.
    """
    if engine.get_execution_options().get("schema_translate_map"):
        raise ValueError(
            "SqlStore does not follow a schema_translate_map: give it an engine whose connections have the "
            "search_path (connect_args={'options': '-c search_path=...'})"
        )
    pool = engine.pool
    if isinstance(pool, sa.StaticPool):
        raise ValueError(
            "a StaticPool has one connection for all threads: give SqlStore the URL, or an engine without it"
        )
    own = pool.recreate()
    if isinstance(own, sa.QueuePool) and vars(own).get("_max_overflow", -1) >= 0:
        # SQLAlchemy has no public way to make a pool like another one, but larger.
        vars(own)["_max_overflow"] += spare
    return own


def full_url(source: str | sa.URL) -> sa.URL:
    """Return a URL that names its driver, and an SQLite file by its whole path.

    A child that changed its directory would count in another file.
    """
    url = sa.make_url(source)
    if url.get_backend_name() == "sqlite" and url.database not in {None, "", ":memory:"}:
        return url.set(database=_absolute(str(url.database), uri="uri" in url.query))
    return url.set(drivername="postgresql+psycopg") if url.drivername in {"postgres", "postgresql"} else url


def _absolute(database: str, *, uri: bool) -> str:
    if not uri or not database.startswith("file:"):
        return os.path.abspath(database)
    path = database.removeprefix("file:")
    # SQLite's URIs name no host here: file:/x and file:///x are whole.
    return database if path.startswith(("/", ":memory:")) else f"file:{quote(os.getcwd())}/{path}"


def make_engine(create: Callable[..., T], url: sa.URL, options: Mapping[str, Any]) -> T:
    """Return an engine in autocommit, or raise what `engine_for` does."""
    backend = url.get_backend_name()
    if backend not in {"postgresql", "sqlite"}:
        raise ValueError(f"SqlStore keeps leases in PostgreSQL or SQLite, not in {backend}")
    if backend == "postgresql" and url.get_driver_name() not in DRIVERS:
        raise ValueError(
            f"SqlStore cannot read what {url.get_driver_name()} says of errors: use postgresql+psycopg"
        )
    if backend == "sqlite" and url.database in {None, "", ":memory:"}:
        raise ValueError(
            "SqlStore needs an SQLite file (sqlite:///leases.db): in memory, MemoryStore does it"
        )
    try:
        # hide_parameters: a result that somebody completes a job with has no place in an error's text.
        return create(url, isolation_level="AUTOCOMMIT", hide_parameters=True, **options)
    except ImportError as absent:
        driver = absent.name or url.get_driver_name()
        extra = "'sinkfence[postgres]' 'psycopg[binary]'" if driver == "psycopg" else driver
        raise ImportError(
            f"{url.drivername} needs the driver {driver}, which is not here ({absent}): pip install {extra}"
        ) from None


@contextmanager
def transaction(connection: sa.Connection) -> Generator[None]:
    """Surround several statements, on a connection in autocommit."""
    sqlite = connection.dialect.name == "sqlite"
    # IMMEDIATE: the write lock is waited for here and not between two statements, where waiting is no use:
    # SQLite answers "locked" at once to a reader that becomes a writer too late.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else "BEGIN")
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        with suppress(SQLAlchemyError):  # some errors have ended it already, or the connection
            connection.exec_driver_sql("ROLLBACK")
        raise
