"""Many workers at each isolation level: they acquire, renew, write under a guard, and end their turn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

import sinkfence_postgres
from sinkfence import Leases, aio
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_postgres import aio as postgres_aio

WORKERS = 50
JOBS = [f"job {n}" for n in range(10)]
AGAIN = 200
"""How often one worker asks again, or runs its transaction again, at most."""
WRITE = sa.text("INSERT INTO effect (job, generation, worker) VALUES (:job, :generation, :worker)")
COUNT = sa.text("UPDATE total SET n = n + 1")
TABLES = """
CREATE TABLE effect (
    seq bigint GENERATED ALWAYS AS IDENTITY, job text, generation bigint, worker int
);
CREATE TABLE total AS SELECT 0 AS n"""
"""All workers change one row, so that their own transactions meet."""


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
def url(request: pytest.FixtureRequest, dsn: str) -> str:
    """The URL of a database, each transaction of which is at this level."""
    store = SqlStore(dsn)
    store.create_schema()
    store.close()
    with psycopg.connect(dsn, autocommit=True) as conn:
        sinkfence_postgres.install(conn)
        conn.execute(TABLES)
        name = conn.execute("SELECT current_database()").fetchone()[0]
        conn.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{request.param}'")
    return dsn.replace("postgresql:", "postgresql+psycopg:")


class Tries:
    """How often what could be run again was, by all workers; and what could not be."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def may_run_again(self, error: DBAPIError, step: str) -> None:
        """Note it, or raise what may not be run again; what our own statement met must be marked."""
        if getattr(error.orig, "sqlstate", None) not in {"40001", "40P01"}:
            raise error
        if step == "lease":
            assert any("retryable" in note for note in error.__notes__), error
        self.counts[step] += 1
        assert self.counts[step] < AGAIN * WORKERS


def in_threads(url: str, tries: Tries) -> None:
    """Workers that are threads, with a manager each, as if each were a process."""
    engine = sa.create_engine(url, pool_size=WORKERS)
    store, barrier = SqlStore(engine), threading.Barrier(WORKERS)
    sink = PostgresSink(engine)

    def work(worker: int) -> None:
        leases, job = Leases(store, ttl=300), JOBS[worker % len(JOBS)]
        barrier.wait(60)
        while True:
            try:
                lease = leases.acquire(job, wait=90)
                break
            except DBAPIError as error:  # the store's own repetitions have a bound
                tries.may_run_again(error, "acquire")
        own = leases.acquire(f"own {worker}")
        for armed in (lease, own):
            sink.arm(armed)
            armed.renew()
        for _ in range(AGAIN):
            step = "write"
            try:
                with engine.connect() as conn, transaction(conn, lease, own):
                    conn.execute(WRITE, {"job": job, "generation": lease.generation, "worker": worker})
                    conn.execute(COUNT)
                    step = "lease"
                    lease.renew(conn=conn)
                    own.complete(worker, conn=conn)
                    lease.release(conn=conn)
                    step = "commit"
                return
            except DBAPIError as error:
                tries.may_run_again(error, step)
        pytest.fail("it never came through")

    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            for working in [pool.submit(work, worker) for worker in range(WORKERS)]:
                working.result()
    finally:
        store.close()
        engine.dispose()


def in_a_loop(url: str, tries: Tries) -> None:
    """Workers that are tasks, likewise."""

    async def main() -> None:
        engine = create_async_engine(url, pool_size=WORKERS)
        store, sink = sql_aio.SqlStore(engine, sync=url), postgres_aio.PostgresSink(engine)

        async def work(worker: int) -> None:
            leases, job = aio.Leases(store, ttl=300), JOBS[worker % len(JOBS)]
            while True:
                try:
                    lease = await leases.acquire(job, wait=90)
                    break
                except DBAPIError as error:
                    tries.may_run_again(error, "acquire")
            own = await leases.acquire(f"own {worker}")
            for armed in (lease, own):
                await sink.arm(armed)
                await armed.renew()
            for _ in range(AGAIN):
                step = "write"
                try:
                    async with engine.connect() as conn, postgres_aio.transaction(conn, lease, own):
                        row = {"job": job, "generation": lease.generation, "worker": worker}
                        await conn.execute(WRITE, row)
                        await conn.execute(COUNT)
                        step = "lease"
                        await lease.renew(conn=conn)
                        await own.complete(worker, conn=conn)
                        await lease.release(conn=conn)
                        step = "commit"
                    return
                except DBAPIError as error:
                    tries.may_run_again(error, step)
            pytest.fail("it never came through")

        try:
            async with asyncio.TaskGroup() as group:
                for worker in range(WORKERS):
                    group.create_task(work(worker))
        finally:
            await store.close()
            await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("run", [in_threads, in_a_loop])
def test_many_take_turns(url: str, run: Callable[[str, Tries], None]) -> None:
    """C72: fifty at once: one owner at a time, no number left out, each turn's write there once, in order.

    The store runs its own transactions again; the error of one of the caller's passes through, and says that
    it may be run again.
    """
    tries = Tries()
    run(url, tries)
    with psycopg.connect(url.replace("+psycopg", "")) as conn:
        for index, job in enumerate(JOBS):
            workers = list(range(index, WORKERS, len(JOBS)))
            rows = conn.execute("SELECT generation, worker FROM effect WHERE job = %s ORDER BY seq", (job,))
            generations, wrote = zip(*rows, strict=True)
            assert generations == tuple(range(1, len(workers) + 1)), tries.counts
            assert sorted(wrote) == workers
            query = "SELECT generation, state, owner FROM sinkfence_lease WHERE job_id = %s"
            assert conn.execute(query, (job,)).fetchone() == (len(workers), "open", None)
        assert conn.execute("SELECT n FROM total").fetchone() == (WORKERS,)
        query = "SELECT result::text FROM sinkfence_lease WHERE state = 'done'"
        assert sorted(int(row[0]) for row in conn.execute(query)) == list(range(WORKERS))
