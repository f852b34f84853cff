"""Whatever ends a lease ends it beyond 31 bits, too: release, completion, loss, repair, close, SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from sinkfence import JobCompleted, LeaseLost, Leases, StaleToken, Token, aio
from sinkfence.marks import MemoryMarks
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio

JOB = "invoice-42"
START = 3_000_000_000


@pytest.fixture
def first(url: str, open_store: Callable[..., SqlStore]) -> int:
    """The next generation of the job."""
    return open_store(url).raise_above(JOB, START).generation + 1


def beaten(lease: Any) -> None:
    """Wait until the heartbeat has renewed it."""
    since = lease.lease_until
    while lease.lease_until == since:
        assert not lease.lost.wait(0.005)


def test_threads(url: str, first: int, open_store: Callable[..., SqlStore], losses: Any) -> None:
    """C50: a manager's leases from their beginning to each of their ends."""
    store, sink = open_store(url), MemoryMarks()
    with Leases(store, ttl=30, heartbeat=0.02, on_lost=losses) as leases:
        with leases.hold(JOB, arm=[sink]) as lease:  # released at the end
            assert lease.generation == first
            assert str(first) in repr(lease)
            beaten(lease)
            sink.arm(lease)
        with pytest.raises(LeaseLost), leases.hold(JOB) as lease:  # lost to somebody else
            store.reopen(JOB)
            assert store.acquire(JOB, "b:2", 30.0).token.generation == first + 2
            assert losses.event.wait(20)
        store.reopen(JOB)
        with pytest.raises(StaleToken), leases.hold(JOB) as lease:  # refused, and raised above
            raise StaleToken(lease.token, first + 10)
        with leases.hold(JOB, arm=[sink]) as lease:  # the store went back: repaired while arming
            assert lease.generation == first + 12
        sink.arm(Token(JOB, first + 20, "lost:1"))
        with leases.hold(JOB, arm=[sink]) as lease:
            assert lease.generation == first + 21
            lease.complete(first)
        with pytest.raises(JobCompleted) as done:
            leases.acquire(JOB)
        assert done.value.result == first
        assert leases.reopen(JOB).generation == first + 21
        kept = leases.acquire(JOB)  # and closed, with the manager
    assert kept.remaining() == 0.0
    record = store.get(JOB)
    assert (record.generation, record.owner) == (first + 22, None)


def test_a_loop(url: str, first: int, open_store: Callable[..., SqlStore], losses: Any) -> None:
    """C50: the same in an event loop, and cancelled."""

    async def cancelled(leases: aio.Leases) -> None:
        async with leases.hold(JOB) as lease:
            await asyncio.to_thread(beaten, lease)
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    async def main() -> None:
        sink = MemoryMarks()
        async with aio.Leases(sql_aio.SqlStore(url), ttl=30, heartbeat=0.02, on_lost=losses) as leases:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(cancelled(leases))
            sink.arm(Token(JOB, first + 20, "lost:1"))
            async with leases.hold(JOB, arm=[sink]) as lease:
                assert lease.generation == first + 21
            with pytest.raises(LeaseLost):
                async with leases.hold(JOB) as lease:
                    await leases.reopen(JOB)
                    await leases.acquire(JOB)
                    assert await asyncio.to_thread(losses.event.wait, 20)
            await leases.reopen(JOB)
            await leases.acquire(JOB)

    asyncio.run(main())
    record = open_store(url).get(JOB)
    assert (record.generation, record.owner) == (first + 24, None)


STOPS = """
import signal, sys
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
with Leases(SqlStore(sys.argv[1]), ttl=300) as leases, leases.hold(sys.argv[2]) as lease:
    print(lease.generation, flush=True)
    sys.stdin.readline()
"""


def test_a_process_that_is_told_to_stop(
    url: str, first: int, open_store: Callable[..., SqlStore], child: Callable[..., Any]
) -> None:
    """C50: SIGTERM ends the body, releases the job and closes the manager."""
    process = child(STOPS, url, JOB)
    assert process.hear() == str(first)
    process.signal(signal.SIGTERM)
    assert process.process.wait(60) == 3
    assert open_store(url).get(JOB).owner is None
