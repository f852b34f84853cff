"""The kinds of connections for an event loop, and how a statement is sent over each."""

from __future__ import annotations

from typing import Any, Final

from sinkfence_postgres import connections
from sinkfence_postgres.statements import Query

KINDS: Final = (
    "psycopg:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncSession",
)


async def run(tx: Any, query: Query) -> list[Any]:
    """As `connections.run`."""
    if connections.is_psycopg(tx):
        import psycopg
        from psycopg.rows import tuple_row

        async with psycopg.AsyncCursor(tx, row_factory=tuple_row) as cursor:
            await cursor.execute(query.pyformat.encode(), query.params, prepare=False)
            await settle(tx)
            return connections.complete(query, await cursor.fetchall() if cursor.description else [])
    rows: list[Any] = await tx.run_sync(connections.run, query)
    return rows


async def settle(tx: Any) -> None:
    """As `connections.settle`."""
    if connections.is_psycopg(tx) and tx.info.pipeline_status:
        async with tx.pipeline() as pipeline:
            await pipeline.sync()
