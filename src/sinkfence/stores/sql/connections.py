"""The store's own connections to its database, and what becomes of a statement that is sent over one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sinkfence.errors import Conflict, LeaseLost, NotEnforced, OutcomeUnknown
from sinkfence.stores.sql import schema
from sinkfence.stores.sql.records import NotSeen
from sinkfence.stores.sql.sending import UNPREPARED, sqlstate
from sinkfence.stores.sql.sessions import listen

T = TypeVar("T")

ATTEMPTS: Final = 6
RETRYABLE: Final = {"40001", "40P01"}
"""Serialization failure and deadlock: the server undid the transaction so that it can be run again."""
_SHUTDOWN: Final = {"57P01", "57P02", "57P03"}
"""Ends a session even while its COMMIT, locally done, waits for a standby."""

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
        url, options = source.url, {"pool": like(source, spare)}
    else:
        url = full(source)
        arguments: dict[str, Any] = {"timeout": 5.0}
        if url.get_backend_name() == "postgresql":
            arguments = {k: v for k, v in TIMEOUTS.items() if k not in url.query}
        options = {"connect_args": arguments, **POOL}
    engine = made(sa.create_engine, url, options)
    if engine.dialect.is_async:
        raise ValueError(f"{url.drivername} is asynchronous: use postgresql+psycopg here")
    listen(engine)
    return engine


def like(engine: sa.Engine, spare: int = 0) -> sa.Pool:
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


def full(source: str | sa.URL) -> sa.URL:
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


def made(create: Callable[..., T], url: sa.URL, options: Mapping[str, Any]) -> T:
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
        with suppress(DBAPIError):  # some errors have ended it already, or the connection
            connection.exec_driver_sql("ROLLBACK")
        raise


class Attempts:
    """The sendings of one call that may be repeated: after a deadlock, and after an answer that was lost.

    `drivers`: what the driver raises. A TimeoutError of a signal's handler is none of psycopg's, and passes;
    asyncpg has OSErrors, which SQLAlchemy leaves as they are.
    """

    def __init__(self, *drivers: type[Exception]) -> None:
        self._drivers: tuple[type[Exception], ...] = (DBAPIError, *drivers)
        self.connected: bool = False
        """Whether there is a connection for this sending: else nothing was sent."""
        self._sent: Exception | None = None
        self._last: Exception | None = None
        self._again = True

    def __iter__(self) -> Generator[float]:
        """Give the seconds to wait before each sending."""
        for attempt in range(ATTEMPTS):
            if not self._again:
                return
            # Jitter, as whoever deadlocked would meet again.
            yield random.uniform(0.5, 1.0) * min(0.02 * 2**attempt, 0.5) if attempt else 0.0  # noqa: S311

    @contextmanager
    def judged(self) -> Generator[None]:
        """Surround one sending. What comes out of it is final; else it is to be sent again, or given up.

        Raises:
            SchemaMismatch: there is no such table, or this role may not use it.
            Conflict: the change of what was seen met something else, and no sending before may have made it.
        """
        self.connected = False
        try:
            yield
        except LeaseLost as lost:
            lost.earlier_attempt_unknown = self._sent is not None
            raise
        except Conflict as conflict:
            if self._sent is None:
                raise
            # The first sending may have made the change, and somebody else the next one.
            self._last, self._again = conflict, False
        except NotSeen as unseen:
            self._last = unseen  # by a snapshot from before the table was rewritten: the next one does
        except self._drivers as error:
            self._last = error
            if not self.connected:
                if self._sent is None:
                    raise
                return
            unanswered = _is_unanswered(error)
            self._sent = error if unanswered else self._sent
            if _is_absent(error):
                raise schema.missing() from error
            if sqlstate(error) == "42501":  # insufficient_privilege
                raise schema.forbidden(str(getattr(error, "orig", error)).partition("\n")[0]) from error
            self._again = unanswered or sqlstate(error) in RETRYABLE | UNPREPARED

    def outcome(self) -> Exception:
        """Return what became of it: OutcomeUnknown, or an error of which is known that it took no effect."""
        if self._sent is None:
            assert self._last is not None
            return _kept_out() if isinstance(self._last, NotSeen) else self._last
        unknown = OutcomeUnknown(
            "the lease store gave no answer to a statement, nor to its repetition: it may have taken effect. "
            "Repeat the call, or let the lease run out"
        )
        unknown.__cause__ = self._sent
        return unknown


def run(
    engine: sa.Engine, work: Callable[[sa.Connection], T], *, pause: Callable[[float], object] = time.sleep
) -> T:
    """Do work that may be repeated.

    Raises:
        OutcomeUnknown: sent, and neither this nor a repetition was answered.
        SchemaMismatch: there is no such table.
        sqlalchemy.exc.DBAPIError: anything else, of which is known that it took no effect.
    """
    attempts = Attempts()
    for wait in attempts:
        if wait:
            pause(wait)
        with attempts.judged(), engine.connect() as connection:
            attempts.connected = True
            return work(connection)
    raise attempts.outcome()


def is_blocked(error: DBAPIError) -> bool:
    """Whether somebody's transaction kept the row, or SQLite's file, locked for too long."""
    return sqlstate(error) == "55P03" or getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _kept_out() -> NotEnforced:
    return NotEnforced(
        "the record is this lease's and open, and no statement changes it: a policy of row level security "
        "or a trigger keeps this role from it. Grant it UPDATE of every row; till then the lease runs out"
    )


def _is_unanswered(error: Exception) -> bool:
    code = sqlstate(error)
    cut = not isinstance(error, DBAPIError) or error.connection_invalidated
    return cut or (code is not None and (code[:2] == "08" or code in _SHUTDOWN))


def _is_absent(error: Exception) -> bool:
    return sqlstate(error) in {"42P01", "42703"} or "no such table" in str(getattr(error, "orig", ""))
