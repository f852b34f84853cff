"""The same names for an event loop. With SQLAlchemy, its own synchronous half works, and awaits here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence import observe
from sinkfence.findings import Finding, Report
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_postgres import binding, connections, rows, statements, watch
from sinkfence_postgres.aio_connections import KINDS, run, settle
from sinkfence_postgres.aio_ledger import clean_ledger, once
from sinkfence_postgres.aio_replay import Replay
from sinkfence_postgres.aio_upkeep import doctor, install, marks, protect
from sinkfence_postgres.marks import JobMark
from sinkfence_postgres.refusals import refusal, repeatable, timed_out
from sinkfence_postgres.sink import ATTEMPTS, IN_FLIGHT, checked
from sinkfence_postgres.statements import Query
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import AsyncConnectionPool
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
        async_sessionmaker,
    )
    from sqlalchemy.sql.dml import Delete, Insert, Update

    AnyTx = psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession | async_scoped_session[Any]
    Tx = TypeVar("Tx", bound=AnyTx)
    Bound = TypeVar("Bound", bound=AsyncEngine | async_sessionmaker[Any])

__all__ = [
    "Finding",
    "JobMark",
    "PostgresSink",
    "Report",
    "bind",
    "clean_ledger",
    "doctor",
    "fenced_execute",
    "guard",
    "install",
    "marks",
    "once",
    "protect",
    "refusal",
    "transaction",
    "translated",
]

BINDABLE: Final = ("sqlalchemy.ext.asyncio:AsyncEngine", "sqlalchemy.ext.asyncio:async_sessionmaker")
SOURCES: Final = ("builtins:str", "sqlalchemy.ext.asyncio:AsyncEngine", "psycopg_pool:AsyncConnectionPool")


async def guard(tx: AnyTx, *bearers: Bearer, lock: bool = False) -> None:
    """As `sinkfence_postgres.guard`."""
    tx_ = connections.expect(tx, *KINDS)
    await settle(tx_)
    await _refuse_unfit(tx_)
    attempt = Attempt(statements.shown(bearers), ours=True)
    with translating(attempt):
        await run(tx_, statements.guard(attempt.bearers, lock))
    look = connections.observed
    watch.guarded(attempt.bearers, look(tx_) if connections.is_psycopg(tx_) else await tx_.run_sync(look))


@asynccontextmanager
async def transaction(tx: Tx, *bearers: Bearer) -> AsyncGenerator[Tx]:
    """As `sinkfence_postgres.transaction`."""
    tx_ = connections.expect(tx, *KINDS)
    await settle(tx_)
    connections.refuse_open(tx_)
    attempt = Attempt(statements.shown(bearers))
    writing = observe.at("postgres", "write", *attempt.bearers)
    with writing, translating(attempt), watch.block(attempt.bearers) as done:
        async with connections.begun(tx_):
            await _refuse_unfit(tx_)
            attempt.ours = True
            await run(tx_, statements.guard(attempt.bearers))
            attempt.ours = False
            yield tx
            await settle(tx_)
            if not connections.is_psycopg(tx_):
                await tx_.run_sync(connections.flush)
            attempt.ours = True
            await run(tx_, statements.confirm(attempt.bearers))
            attempt.ours = False
            attempt.committing = True
        if attempt.committing:
            done()


@asynccontextmanager
async def translated() -> AsyncGenerator[None]:
    """As `sinkfence_postgres.translated`."""
    with watch.commit(), translating(Attempt(committing=True)):
        yield


async def fenced_execute(
    tx: AsyncConnection | AsyncSession | async_scoped_session[Any],
    statement: Insert | Update | Delete,
    bearer: Bearer,
    *,
    column: str = "generation",
) -> int:
    """As `sinkfence_postgres.fenced_execute`."""
    tx_: Any = connections.expect(tx, *KINDS[1:])
    written: int = await tx_.run_sync(rows.fenced_execute, statement, bearer, column=column)
    return written


def bind(target: Bound, bearer: Bearer) -> Bound:
    """As `sinkfence_postgres.bind`, for an async_sessionmaker or an AsyncEngine; nothing is awaited."""
    target_: Any = connections.expect(target, *BINDABLE)
    if connections.is_a(target_, BINDABLE[0]):
        binding.bind_engine(target_.sync_engine, bearer)
        return target
    # The listeners go on the synchronous sessions inside, whose class may be everybody's: so to a new one.
    base = target_.kw.get("sync_session_class") or target_.class_.sync_session_class
    target_.configure(sync_session_class=type(base.__name__, (base,), {}))
    binding.bind_sessions(target_.kw["sync_session_class"], bearer)
    return target


class PostgresSink:
    """As `sinkfence_postgres.PostgresSink`: an AsyncEngine, an AsyncConnectionPool or a connection string."""

    durable: bool = True
    """Marks outlive processes, crashes and restarts."""

    def __init__(self, source: AsyncEngine | AsyncConnectionPool[Any] | str) -> None:
        self._source: Any = checked(source, *SOURCES)

    async def arm(self, bearer: Bearer, *, evict: bool = False) -> None:
        """As `sinkfence_postgres.PostgresSink.arm`."""
        token = bearer.token
        with observe.at("postgres", "arm", token), translating(Attempt({token: bearer}, ours=True)):
            async with self._connection() as conn, _alone(conn) as tx:
                armed = evict and await _raise_mark(tx, statements.arm(token, IN_FLIGHT), bounded=True)
                if evict:
                    await _raise_mark(tx, statements.evict(token))
                if not armed:
                    await _raise_mark(tx, statements.arm(token))

    @asynccontextmanager
    async def begin(self, bearer: Bearer) -> AsyncGenerator[Any]:
        """As `sinkfence_postgres.PostgresSink.begin`."""
        async with self._connection() as conn, transaction(conn, bearer):
            yield conn

    async def check(self, token: Token) -> None:
        """As `sinkfence_postgres.PostgresSink.check`."""
        with translating(Attempt({token: token}, ours=True)):
            async with self._connection() as conn, _alone(conn) as tx:
                await run(tx, statements.recognise(token))

    async def announce(self, token: Token) -> None:
        """As `sinkfence_postgres.PostgresSink.announce`."""
        await self.arm(token)

    @asynccontextmanager
    async def enter(self, token: Token) -> AsyncGenerator[watch.Watch]:
        """As `sinkfence_postgres.PostgresSink.enter`."""
        with watch.entered(token) as seen:
            yield seen

    def replay(self, max_body: int = 65536) -> Replay:
        """As `sinkfence_postgres.PostgresSink.replay`."""
        return Replay(self._connection, max_body)

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Any]:
        source = self._source
        if isinstance(source, str):
            import psycopg

            source = await psycopg.AsyncConnection.connect(source)
        elif hasattr(source, "dialect"):
            source = source.connect()
        else:
            source = source.connection()
        async with source as conn:
            yield conn


async def _refuse_unfit(tx: Any) -> None:
    if connections.is_psycopg(tx):
        connections.refuse_unfit(tx)
    else:
        await tx.run_sync(connections.refuse_unfit)


@asynccontextmanager
async def _alone(conn: Any) -> AsyncGenerator[Any]:
    if not connections.is_psycopg(conn):
        yield await conn.execution_options(isolation_level="AUTOCOMMIT")
        return
    before = conn.autocommit
    await conn.set_autocommit(True)
    try:
        yield conn
    finally:
        if not conn.closed:
            await conn.set_autocommit(before)


async def _raise_mark(tx: Any, query: Query, *, bounded: bool = False) -> bool:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await run(tx, query)
            break
        except Exception as exc:
            if timed_out(exc) and bounded:
                return False
            if attempt == ATTEMPTS or not repeatable(exc):
                raise
    return True
