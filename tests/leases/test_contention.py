"""Many want one job at the same moment, some hundreds of rounds: one has it, and no number is left out.

SINKFENCE_TEST_ROUNDS=1000 has a thousand of each kind, which takes minutes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sinkfence import LeaseHeld, Leases, aio
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio

JOB = "invoice-42"
TTL = 300.0
ROUNDS = int(os.environ.get("SINKFENCE_TEST_ROUNDS", "0"))
"""Of each test, in place of its own number."""


def dense(numbers: list[int], rounds: int) -> None:
    """Each round had one winner, and each winner the next number."""
    assert sorted(numbers) == list(range(1, rounds + 1))


@pytest.mark.timeout(120 + ROUNDS)
@pytest.mark.parametrize(
    ("where", "many", "rounds"),
    [("pg_url", 64, ROUNDS or 40), ("lite_url", 64 if ROUNDS else 16, ROUNDS or 40)],
    ids=["postgresql", "sqlite"],
)
def test_threads(
    request: pytest.FixtureRequest, open_store: Callable[..., SqlStore], where: str, many: int, rounds: int
) -> None:
    """C73: threads of one manager that ask at once: one is let in, the others are told so."""
    url = request.getfixturevalue(where).replace("postgresql:", "postgresql+psycopg:")
    leases = Leases(open_store(sa.create_engine(url, pool_size=many)), ttl=TTL)
    barrier, numbers = threading.Barrier(many, timeout=90), list[int]()

    def ask() -> None:
        for _ in range(rounds):
            barrier.wait()
            try:
                lease = leases.acquire(JOB)
            except LeaseHeld:
                lease = None
            barrier.wait()  # everybody has asked
            if lease:
                numbers.append(lease.generation)
                lease.release()

    with ThreadPoolExecutor(many) as pool:
        for asking in [pool.submit(ask) for _ in range(many)]:
            asking.result()
    assert numbers == list(range(1, rounds + 1))


PROCESSES = """
import multiprocessing, os, sys
from sinkfence import LeaseHeld, Leases
from sinkfence.stores.sql import SqlStore
url, job, many, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
leases = Leases(SqlStore(url), ttl=300)
leases.acquire(job).release()  # the parent has a connection when it forks
def ask(barrier):
    numbers = [0]
    barrier.wait(90)
    while numbers[-1] < rounds:
        try:
            lease = leases.acquire(job)
        except LeaseHeld:
            continue
        numbers.append(lease.generation)
        lease.release()  # LeaseLost, if somebody else was let in
    os.write(1, (" ".join(map(str, numbers[1:])) + "\\n").encode())
fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(many)
workers = [fork.Process(target=ask, args=(barrier,)) for _ in range(many)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""


@pytest.mark.timeout(120 + ROUNDS)
@pytest.mark.parametrize(
    ("where", "rounds"),
    [("pg_url", ROUNDS or 200), ("lite_url", ROUNDS or 150)],
    ids=["postgresql", "sqlite"],
)
def test_processes(
    request: pytest.FixtureRequest, child: Callable[..., Any], where: str, rounds: int
) -> None:
    """C73: 16 processes, forked from one that has used its manager, take the job from each other's hands."""
    process = child(PROCESSES, request.getfixturevalue(where), JOB, "16", str(rounds))
    numbers = [int(word) for _ in range(16) for word in process.hear().split()]
    assert len(numbers) >= rounds - 1
    dense([1, *numbers], len(numbers) + 1)


@pytest.mark.timeout(120 + ROUNDS)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_tasks(pg_url: str, driver: str) -> None:
    """C73: 64 tasks of one event loop ask at once."""
    rounds, numbers = ROUNDS or 20, list[int]()

    async def ask(leases: aio.Leases) -> aio.Lease | None:
        try:
            return await leases.acquire(JOB)
        except LeaseHeld:
            return None

    async def main() -> None:
        url = pg_url.replace("postgresql:", f"postgresql+{driver}:")
        store = sql_aio.SqlStore(create_async_engine(url, pool_size=64))
        async with aio.Leases(store, ttl=TTL) as leases:
            for _ in range(rounds):
                answers = await asyncio.gather(*(ask(leases) for _ in range(64)))
                [lease] = [answer for answer in answers if answer]
                numbers.append(lease.generation)
                await lease.release()

    asyncio.run(main())
    dense(numbers, rounds)
