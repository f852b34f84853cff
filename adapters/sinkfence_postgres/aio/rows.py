"""Rows that keep the generation that wrote them, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkfence.sinks import Bearer
from sinkfence_postgres import connections, rows
from sinkfence_postgres.aio.connections import KINDS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.sql.dml import Delete, Insert, Update


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
