"""The kinds of connections for an event loop, and how a statement is sent over each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence_postgres import connections
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AnyTx = psycopg.AsyncConnection[Any] | AsyncConnection | AsyncSession | async_scoped_session[Any]
    Tx = TypeVar("Tx", bound=AnyTx)

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
            await sync(tx)
            return connections.complete(query, await cursor.fetchall() if cursor.description else [])
    rows: list[Any] = await tx.run_sync(connections.run, query)
    return rows


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
