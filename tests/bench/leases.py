"""What a lease costs: against three plain UPDATEs by key, beside other libraries; ten thousand at once."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psycopg

from bench.leases_ways import TTL, Way, ways
from bench.race import Figure, Race, Turn, at_least, at_most, timed
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.servers.postgres import postgres


def bench(small: bool) -> Iterator[Race | Figure | str]:
    """The table of the design: throughput, a batch of renewals, and a process that holds many."""
    jobs, times = (2000, 1) if small else (1_000_000, 25)
    with postgres(durable=not small) as server, ExitStack() as stack:
        dsn = server.create_database()
        admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        version = admin.execute("show server_version").fetchone()
        yield f"PostgreSQL {version and version[0]}, fsync on, {jobs} jobs, clients are threads"
        found, missing = ways(dsn, admin, jobs, stack)
        for name in missing:
            yield f"{name}: not run: it is not installed (extra `bench`)"
        numbers = count(1)  # a job that is completed is completed for ever
        for clients, goal in ((1, None), (8, 0.95)):
            threads = stack.enter_context(ThreadPoolExecutor(clients))
            yield Race(
                f"acquire, renew and complete, {clients} client{'s' * (clients > 1)}",
                "turns/s",
                {name: rate(threads, clients, way, times, numbers) for name, way in found.items()},
                "plain UPDATEs",
                {"sinkfence": at_least(goal)} if goal else {},
                better="high",
                rounds=11,
            )
        yield from many(dsn, admin, 200 if small else 10_000, 1.0 if small else 60.0)


def rate(threads: ThreadPoolExecutor, clients: int, way: Way, times: int, numbers: Iterator[int]) -> Turn:
    """Make a turn of all clients at once; turns at a job per second."""

    def client(_: int) -> None:
        for _ in range(times):
            way(f"jobs/{next(numbers)}")

    def turn() -> float:
        before = time.perf_counter()
        list(threads.map(client, range(clients)))
        return clients * times / (time.perf_counter() - before)

    return turn


def many(dsn: str, admin: psycopg.Connection, held: int, seconds: float) -> Iterator[Race | Figure | str]:
    """Ten thousand leases: a batch against a plain UPDATE of as many rows, and a process that holds them."""
    store = SqlStore(dsn)
    tokens = [store.acquire(f"many/{n}", f"a:{n}", TTL).token for n in range(held)]
    batch = [(token, TTL) for token in tokens]
    admin.execute(
        f"insert into plain (job_id, state) select 'many/' || n, 'open' from generate_series(1, {held}) n"
    )
    admin.execute("vacuum analyze")
    keys = [f"many/{n}" for n in range(1, held + 1)]
    renew = "update plain set lease_until = clock_timestamp() + '300 s' where job_id = any(%s)"
    seen: list[float] = []
    turn = timed(lambda: store.renew_many(batch), unit=0.001)
    yield Race(
        f"{held} leases renewed in one statement",
        "ms",
        {
            "plain UPDATE": timed(lambda: admin.execute(renew, (keys,)), unit=0.001),
            "renew_many": lambda: seen.append(turn()) or seen[-1],
        },
        "plain UPDATE",
        rounds=11,
    )
    yield Figure("the median batch", sorted(seen)[len(seen) // 2], "ms", at_most(150))
    for token in tokens:
        store.release(token)
    store.close()
    yield from holding(dsn, held, seconds)


def holding(dsn: str, held: int, seconds: float) -> Iterator[Figure]:
    """Memory of a process' leases, and the CPU time of its heartbeat."""
    resident, leases = memory(), Leases(SqlStore(dsn), ttl=30)
    with ExitStack() as stack:
        for n in range(held):
            stack.enter_context(leases.hold(f"many/{n}"))
        yield Figure("memory of each lease that is held", (memory() - resident) / held, "bytes")
        before, since = cpu(), time.monotonic()
        threading.Event().wait(seconds)
        used = (cpu() - before) / (time.monotonic() - since)
        yield Figure(f"CPU time of holding {held}, renewed every 10 s", 100 * used, "% of a core")
    leases.close()


def memory() -> int:
    """Bytes that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu() -> float:
    """Seconds that this process has computed."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
