"""A user's program on an event loop, to be checked and not run: what each call is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from sinkfence import Token
from sinkfence.aio import Lease, Leases
from sinkfence.stores.sql.aio import SqlStore
from sinkfence_http import SignedTokens, VerificationKey
from sinkfence_http.aio import Fence
from sinkfence_postgres import aio


async def work(engine: AsyncEngine, dsn: str, result: dict[str, int]) -> None:
    """Hold a job, and write under it."""
    leases = Leases(SqlStore(engine), ttl=30)
    ledger = aio.PostgresSink(engine)
    async with leases.hold("reports", arm=[ledger]) as lease:
        assert_type(lease, Lease)
        async with AsyncSession(engine) as session, aio.transaction(session, lease) as same:
            assert_type(same, AsyncSession)

            async def render() -> dict[str, int]:
                return result

            assert_type(await aio.once(session, lease, "render 2026-05-01", render), Any)
        async with await psycopg.AsyncConnection.connect(dsn) as raw, aio.transaction(raw, lease) as same_raw:
            assert_type(same_raw, psycopg.AsyncConnection[tuple[Any, ...]])
        await lease.complete(result)
    with leases.hold("reports"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def serve(engine: AsyncEngine, keys: Mapping[str, VerificationKey], scope: dict[str, Any]) -> Token:
    """Ask the door for a request's token."""
    fence = Fence(aio.PostgresSink(engine), SignedTokens(keys, audience="orders"))
    return assert_type(await fence.admit(scope, "account-17"), Token)
