"""What a service has answered, for an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from sinkfence.sinks import RequestState
from sinkfence.tokens import Token
from sinkfence_postgres import connections, plans, statements, watch
from sinkfence_postgres.aio.transactions import run
from sinkfence_postgres.replay import AnswerEntry, positive
from sinkfence_postgres.transactions import Attempt, translating


class Replay:
    """As `sinkfence_postgres.replay.Replay`."""

    def __init__(self, connection: Callable[[], AbstractAsyncContextManager[Any]], max_body: int) -> None:
        self.max_body: int = positive(max_body)
        self._connection = connection

    @asynccontextmanager
    async def claim(self, token: Token, key: str, fingerprint: str) -> AsyncGenerator[Claim]:
        """As `sinkfence.sinks.Replay.claim`."""
        record = AnswerEntry(token, key, fingerprint)
        async with AsyncExitStack() as held:
            conn = await held.enter_async_context(self._own())
            detached: list[Any] = []
            held.push_async_callback(_close, conn, detached)
            block = await held.enter_async_context(AsyncExitStack())
            await block.enter_async_context(connections.begun(conn))
            with translating(Attempt({token: token}, ours=True)):
                state, answer = record.read(*(await run(conn, record.find()))[0])
            watch.claimed(token, key, fingerprint)
            if state != "run":
                await held.aclose()
            elif not connections.is_psycopg(conn):
                detached.append(await conn.run_sync(_detach))
            yield Claim(record, conn, block, state, answer)

    @asynccontextmanager
    async def _own(self) -> AsyncGenerator[Any]:
        async with self._connection() as conn:
            if not connections.is_psycopg(conn):
                yield await conn.execution_options(isolation_level="READ COMMITTED")
                return
            where = plans.address(conn)
        import psycopg

        async with await psycopg.AsyncConnection.connect(**where) as own:
            await own.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            yield own


def _detach(conn: Any) -> Any:
    conn.detach()
    return conn.connection.dbapi_connection


async def _close(conn: Any, detached: list[Any]) -> None:
    # What was detached from a pool SQLAlchemy closes for synchronous drivers, and not for all of the others.
    def close(conn: Any) -> None:
        if not conn.invalidated:
            conn.invalidate()
        detached.pop().close()

    if detached:
        await conn.run_sync(close)


class Claim:
    """As `sinkfence_postgres.replay.Claim`."""

    def __init__(
        self, record: AnswerEntry, conn: Any, block: AsyncExitStack, state: RequestState, answer: str | None
    ) -> None:
        self.state: RequestState = state
        self.answer = answer
        self._record = record
        self._conn = conn
        self._block = block

    async def keep(self, answer: str) -> None:
        """As `sinkfence_postgres.replay.Claim.keep`."""
        await self._enter(answer)

    async def leave(self, *, undone: bool) -> None:
        """As `sinkfence_postgres.replay.Claim.leave`."""
        if undone:
            await self._block.aclose()
        else:
            await self._enter(self._record.token.generation)

    async def _enter(self, outcome: str | int) -> None:
        token = self._record.token
        attempt = Attempt({token: token}, ours=True)
        with translating(attempt):
            async with self._block:
                await run(self._conn, statements.guard([token]))
                await run(self._conn, self._record.insert(outcome))
                attempt.committing = True
