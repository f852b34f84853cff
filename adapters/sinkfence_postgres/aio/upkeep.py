"""The asynchronous half of what is done at deployment and by operators: in `sinkfence_postgres.aio`, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from sinkfence.findings import Report
from sinkfence_postgres import connections, installation, plans, protection
from sinkfence_postgres.aio.transactions import KINDS, run
from sinkfence_postgres.doctor import examining
from sinkfence_postgres.marks import MEANINGS, JobMark, reading
from sinkfence_postgres.plans import Plan
from sinkfence_postgres.refusals import explained
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:
    from sinkfence_postgres.aio.transactions import AnyTx

T = TypeVar("T")


async def install(conn: AnyTx) -> None:
    """As `sinkfence_postgres.install`."""
    tx = connections.expect(conn, *KINDS)
    if not connections.is_psycopg(tx):
        await tx.run_sync(installation.install)
        return
    with explained(installation.MEANINGS):
        async with in_transaction(tx, read_committed=True):
            await tx.execute(installation.schema())


async def protect(conn: AnyTx, table: str, *, job_id: str | None = None, warn_only: bool = False) -> None:
    """As `sinkfence_postgres.protect`."""
    with explained(protection.meanings(table)):
        await carry_out(conn, protection.protecting(table, job_id, warn_only), read_committed=True)


async def marks(conn: AnyTx, prefix: str = "") -> list[JobMark]:
    """As `sinkfence_postgres.marks`."""
    with explained(MEANINGS):
        return await carry_out(conn, reading(prefix))


async def doctor(conn: AnyTx) -> Report:
    """As `sinkfence_postgres.doctor`."""
    return await carry_out(conn, examining())


@asynccontextmanager
async def in_transaction(tx: Any, *, read_committed: bool) -> AsyncGenerator[None]:
    """As `plans.in_transaction`, on psycopg."""
    joined = connections.is_open(tx)
    async with nullcontext() if joined else tx.transaction():
        if read_committed and not joined:
            await run(tx, plans.READ_COMMITTED)
        yield


async def carry_out(conn: AnyTx, plan: Plan[T], *, read_committed: bool = False) -> T:
    """As `plans.carry_out`."""
    tx: Any = connections.expect(conn, *KINDS)
    if not connections.is_psycopg(tx):
        return await tx.run_sync(plans.carry_out, plan, read_committed=read_committed)  # type: ignore[no-any-return]
    import psycopg

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(in_transaction(tx, read_committed=read_committed))
        other: Any = None
        try:
            step = next(plan)
            while True:
                if isinstance(step, Query):
                    step = plan.send(await run(tx, step))
                    continue
                try:
                    if other is None:
                        opened = await psycopg.AsyncConnection.connect(**plans.address(tx))
                        other = await stack.enter_async_context(opened)
                    rows = await run(other, step.query)
                except Exception as exc:  # noqa: BLE001
                    step = plan.throw(exc)
                else:
                    step = plan.send(rows)
        except StopIteration as done:
            answer: T = done.value
            return answer
