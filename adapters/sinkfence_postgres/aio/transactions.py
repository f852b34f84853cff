"""Guarded transactions, awaited. With SQLAlchemy, its own synchronous half works, and awaits here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sinkfence import observe
from sinkfence.sinks import Bearer
from sinkfence_postgres import connections, statements, watch
from sinkfence_postgres.aio.connections import KINDS, refuse_unfit, run, sync
from sinkfence_postgres.outcomes import follow
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    from sinkfence_postgres.aio.connections import AnyTx, Tx


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
