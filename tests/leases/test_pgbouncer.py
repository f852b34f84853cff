"""Leases through PgBouncer in transaction mode, where each statement may be on another server process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from sinkfence import JobCompleted, LeaseHeld, Leases, aio
from sinkfence.marks import MemoryMarks
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence_trials.servers.pooler import PGBOUNCER, pgbouncer

JOB = "invoice-42"

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="not run: there is no pgbouncer on the PATH")


@pytest.fixture(scope="module")
def way(lease_database: tuple[str, SqlStore, psycopg.Connection]) -> Iterator[str]:
    """The URL of the lease store through PgBouncer."""
    with pgbouncer(lease_database[0]) as dsn:
        yield dsn


@pytest.fixture
def pooled(way: str, pg_url: str) -> str:
    """The same, with fresh tables."""
    return way


def what_is_left(dsn: str) -> tuple[Any, ...]:
    """Locks, settings and statements of the server process that everybody shares."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        return conn.execute(
            "select (select count(*) from pg_locks where relation = 'sinkfence_lease'::regclass),"
            " (select count(*) from pg_prepared_statements), current_setting('lock_timeout'),"
            " current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout')"
        ).fetchone()


NOTHING = (0, 0, "0", "on", "0")


def until_renewed(leases: Any, job: str, times: int) -> None:
    """Wait until the heartbeat's thread has come and gone."""
    seen = leases.get(job).lease_until
    for _ in range(times):
        while leases.get(job).lease_until == seen:
            pass
        seen = leases.get(job).lease_until


def test_every_call(pooled: str, open_store: Callable[..., SqlStore]) -> None:
    """C74: two managers and a heartbeat share one server process, and leave nothing in it."""
    one, other = Leases(open_store(pooled), ttl=30, heartbeat=0.05), Leases(open_store(pooled), ttl=30)
    with one.hold(JOB, arm=[MemoryMarks()]) as lease:
        until_renewed(other, JOB, 2)
        with pytest.raises(LeaseHeld):
            other.acquire(JOB)
        lease.renew()
    other.acquire(JOB).complete({"rows": 1})
    with pytest.raises(JobCompleted):
        one.acquire(JOB)
    assert [record.generation for record in one.list()] == [2]
    other.reopen(JOB)
    other.raise_above(JOB, 9)
    assert one.acquire(JOB).generation == 10
    one.close()
    assert what_is_left(pooled) == NOTHING


def test_every_call_of_a_loop(pooled: str, pg: SqlStore) -> None:
    """C74: the same from an event loop by psycopg, which prepares nothing."""

    async def main() -> None:
        store = sql_aio.SqlStore(pooled.replace("postgresql:", "postgresql+psycopg:"))
        async with aio.Leases(store, ttl=30, heartbeat=0.05) as leases:
            async with leases.hold(JOB) as lease:
                await asyncio.to_thread(until_renewed, Leases(pg), JOB, 2)
                with pytest.raises(LeaseHeld):
                    await leases.acquire(JOB)
                await lease.renew()
                await lease.complete()
            with pytest.raises(JobCompleted):
                await leases.acquire(JOB)

    asyncio.run(main())
    assert what_is_left(pooled) == NOTHING


def test_nothing_is_prepared_however_often(pooled: str, open_store: Callable[..., SqlStore]) -> None:
    """C74: another client would execute what is prepared under a counted name: a pooler is noticed."""
    store = open_store(pooled)
    token = store.acquire(JOB, "a:1", 30.0).token
    for _ in range(8):
        store.renew(token, 30.0)
        store.renew_many([(token, 30.0)])

    async def main() -> None:
        awaited = sql_aio.SqlStore(pooled.replace("postgresql:", "postgresql+psycopg:"))
        for _ in range(8):
            await awaited.renew(token, 30.0)
        await awaited.close()

    asyncio.run(main())
    assert what_is_left(pooled) == NOTHING


CLIENT = """
import sys, psycopg
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
leases = Leases(SqlStore(sys.argv[1]), ttl=0.5, heartbeat=0.05)
with leases.hold(sys.argv[2]) as lease, psycopg.connect(sys.argv[1]) as conn:
    lease.release(conn=conn)  # in a transaction that nobody will commit: the row is locked
    print("holds", lease.generation, flush=True)
    sys.stdin.readline()
"""


def test_a_client_that_is_killed(pooled: str, pg: SqlStore, child: Callable[..., Any]) -> None:
    """C74: kill -9 in the middle of a hold and of a transaction: the lease runs out, nothing stays locked."""
    process = child(CLIENT, pooled, JOB)
    assert process.hear() == "holds 1"
    process.signal(signal.SIGKILL)
    with Leases(pg, ttl=30).hold(JOB, wait=30) as lease:
        assert lease.generation == 2
    assert what_is_left(pooled) == NOTHING


def test_a_locked_row_is_waited_for_as_long_as_ever(
    pooled: str, open_store: Callable[..., SqlStore], admin: psycopg.Connection
) -> None:
    """The bound on the wait for a row is no setting of the session: it holds here, and leaves nothing."""
    Leases(open_store(pooled)).acquire(JOB).release()
    with admin.transaction():
        admin.execute("select from sinkfence_lease for update")
        with pytest.raises(LeaseHeld):
            Leases(open_store(pooled)).acquire(JOB)
    assert what_is_left(pooled) == NOTHING
