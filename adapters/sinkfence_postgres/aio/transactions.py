"""What writes to PostgreSQL, awaited. With SQLAlchemy, its own synchronous half works, and awaits here."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence import observe
from sinkfence.results import as_json
from sinkfence.sinks import Bearer, token_of
from sinkfence_postgres import binding, connections, ledger, rows, statements, watch
from sinkfence_postgres.outcomes import follow
from sinkfence_postgres.refusals import explained
from sinkfence_postgres.statements import Query
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    import psycopg
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
    Target = TypeVar("Target", bound=AsyncEngine | async_sessionmaker[Any])

KINDS: Final = (
    "psycopg:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncSession",
)
BINDABLE: Final = ("sqlalchemy.ext.asyncio:AsyncEngine", "sqlalchemy.ext.asyncio:async_sessionmaker")


async def guard(tx: AnyTx, *bearers: Bearer, lock: bool = False) -> None:
    """As `sinkfence_postgres.guard`."""
    tx_ = connections.expect(tx, *KINDS)
    await sync(tx_)
    await refuse_unfit(tx_)
    attempt = Attempt(statements.shown(bearers), ours=True)
    with translating(attempt):
        await run(tx_, statements.guard(attempt.bearers, lock))
    followed = follow(tx_) if connections.is_psycopg(tx_) else await tx_.run_sync(follow)
    watch.guarded(attempt.bearers, followed)


@asynccontextmanager
async def transaction(tx: Tx, *bearers: Bearer) -> AsyncGenerator[Tx]:
    """As `sinkfence_postgres.transaction`."""
    tx_ = connections.expect(tx, *KINDS)
    await sync(tx_)
    connections.refuse_open(tx_)
    attempt = Attempt(statements.shown(bearers))
    writing = observe.at("postgres", "write", *attempt.bearers)
    with writing, translating(attempt), watch.block(attempt.bearers) as done:
        async with connections.begun(tx_):
            await refuse_unfit(tx_)
            attempt.ours = True
            await run(tx_, statements.guard(attempt.bearers))
            attempt.ours = False
            yield tx
            await sync(tx_)
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


def bind(target: Target, bearer: Bearer) -> Target:
    """As `sinkfence_postgres.bind`, for an async_sessionmaker or an AsyncEngine; nothing is awaited."""
    target_: Any = connections.expect(target, *BINDABLE)
    if connections.is_a(target_, BINDABLE[0]):
        binding.bind(target_.sync_engine, bearer)
        return target
    # The listeners go on the class of the synchronous sessions inside, which other async_sessionmakers may
    # use as well: so this one gets a class of its own.
    base = target_.kw.get("sync_session_class") or target_.class_.sync_session_class
    target_.configure(sync_session_class=type(base.__name__, (base,), {}))
    binding.listen(target_.kw["sync_session_class"], binding.BoundSessions(bearer).listeners())
    return target


async def once(tx: AnyTx, bearer: Bearer, step: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """As `sinkfence_postgres.once`; what `call` returns is awaited."""
    tx_ = connections.expect(tx, *KINDS)
    entry = ledger.entered(token_of(bearer), step)
    attempt = Attempt({entry.token: bearer}, ours=True)
    await sync(tx_)
    with translating(attempt):
        async with connections.savepoint(tx_) as block:
            if not await run(tx_, entry.insert()):
                return entry.recall(*(await run(tx_, entry.select()))[0])
            attempt.ours = False
            result = as_json(await call())
            ledger.refuse_ended(block)
            await sync(tx_)
            attempt.ours = True
            await run(tx_, entry.update(result))
            return json.loads(result)
    raise ledger.undone()


async def clean_ledger(conn: psycopg.AsyncConnection[Any] | AsyncConnection, older_than: timedelta) -> int:
    """As `sinkfence_postgres.clean_ledger`."""
    tx = connections.expect(conn, *KINDS)
    query, gone = ledger.cleaning(older_than), 0
    with explained(ledger.MEANINGS):
        while True:
            async with nullcontext() if connections.is_open(tx) else connections.begun(tx):
                batch: int = (await run(tx, query))[0][0]
            gone += batch
            if batch < ledger.BATCH:
                return gone


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


async def run(tx: Any, query: Query) -> list[Any]:
    """As `connections.run`."""
    if connections.is_psycopg(tx):
        import psycopg
        from psycopg.rows import tuple_row

        async with psycopg.AsyncCursor(tx, row_factory=tuple_row) as cursor:
            await cursor.execute(query.pyformat.encode(), query.params, prepare=False)
            await sync(tx)
            return connections.complete(query, await cursor.fetchall() if cursor.description else [])
    answer: list[Any] = await tx.run_sync(connections.run, query)
    return answer


async def sync(tx: Any) -> None:
    """As `connections.sync`."""
    if connections.is_psycopg(tx) and tx.info.pipeline_status:
        async with tx.pipeline() as pipeline:
            await pipeline.sync()


async def refuse_unfit(tx: Any) -> None:
    """As `connections.refuse_unfit`."""
    if connections.is_psycopg(tx):
        connections.refuse_unfit(tx)
    else:
        await tx.run_sync(connections.refuse_unfit)
