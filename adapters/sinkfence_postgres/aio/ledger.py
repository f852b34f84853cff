"""The asynchronous half of the ledger; it is in `sinkfence_postgres.aio`, too."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sinkfence.results import as_json
from sinkfence.sinks import Bearer
from sinkfence_postgres import connections, ledger
from sinkfence_postgres.aio.connections import KINDS, run, sync
from sinkfence_postgres.refusals import explained
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection

    from sinkfence_postgres.aio.connections import AnyTx


async def once(tx: AnyTx, bearer: Bearer, step: str, call: Callable[[], Awaitable[Any]]) -> Any:
    """As `sinkfence_postgres.once`; what `call` returns is awaited."""
    tx_ = connections.expect(tx, *KINDS)
    entry = ledger.entered(bearer.token, step)
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
