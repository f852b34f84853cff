"""A PostgreSQL database as a sink, and as the gate of a service, for an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sinkfence import observe
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token
from sinkfence_postgres import connections, sources, statements, watch
from sinkfence_postgres.aio.replay import Replay
from sinkfence_postgres.aio.transactions import run, transaction
from sinkfence_postgres.refusals import is_demoted, repeatable, sqlstate
from sinkfence_postgres.sink import ATTEMPTS, IN_FLIGHT
from sinkfence_postgres.statements import Query
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool
    from sqlalchemy.ext.asyncio import AsyncEngine


class PostgresSink:
    """As `sinkfence_postgres.PostgresSink`: an AsyncEngine, an AsyncConnectionPool or a connection string."""

    durable: bool = True
    """Marks outlive processes, crashes and restarts."""

    def __init__(self, source: AsyncEngine | AsyncConnectionPool[Any] | str) -> None:
        self._source: Any = sources.checked(source, *sources.ASYNC_KINDS)

    async def arm(self, bearer: Bearer, *, evict: bool = False) -> None:
        """As `sinkfence_postgres.PostgresSink.arm`."""
        token = token_of(bearer)

        async def work(tx: Any) -> None:
            armed = evict and await _raise_mark(tx, statements.arm(token, IN_FLIGHT), bounded=True)
            if evict:
                await _raise_mark(tx, statements.evict(token))
            if not armed:
                await _raise_mark(tx, statements.arm(token))

        with observe.at("postgres", "arm", token), translating(Attempt({token: bearer}, ours=True)):
            await self._alone(work)

    @asynccontextmanager
    async def begin(self, bearer: Bearer) -> AsyncGenerator[Any]:
        """As `sinkfence_postgres.PostgresSink.begin`."""
        async with self._connection() as conn, transaction(conn, bearer):
            yield conn

    async def check(self, token: Token) -> None:
        """As `sinkfence_postgres.PostgresSink.check`."""
        with translating(Attempt({token: token}, ours=True)):
            await self._alone(lambda tx: run(tx, statements.recognise(token)))

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

    async def _alone(self, work: Callable[[Any], Awaitable[object]]) -> None:
        async with self._connection() as conn:
            try:
                async with _alone(conn) as tx:
                    await work(tx)
                return
            except Exception as error:
                demoted = is_demoted(error)
                if not demoted and not connections.is_dead(conn):
                    raise
        if renew := sources.renewal(self._source, demoted=demoted):
            await renew()
        async with self._connection() as conn, _alone(conn) as tx:
            await work(tx)

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
        if connections.status(conn) == connections.IDLE:
            await conn.set_autocommit(before)


async def _raise_mark(tx: Any, query: Query, *, bounded: bool = False) -> bool:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await run(tx, query)
            break
        except Exception as exc:
            if bounded and sqlstate(exc) == "55P03":
                return False
            if attempt == ATTEMPTS or not repeatable(exc):
                raise
    return True
