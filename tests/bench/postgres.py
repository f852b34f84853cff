"""What a guard costs: against the same transaction unguarded, and beside the simple checks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import psycopg

import sinkfence_postgres
from bench.djangos import Djangos
from bench.postgres_ways import (
    CLIENTS,
    GENERATION,
    LOOK,
    TABLES,
    UPSERT,
    WAYS,
    WRITE,
    WRITE_IF,
    Clients,
    Way,
    for_share,
    guarded,
    locked,
    token,
    upsert,
)
from bench.race import Figure, Race, Turn, absent, at_least, at_most, timed
from sinkfence.errors import NotArmed, StaleToken
from sinkfence_trials.servers.postgres import postgres


def bench(small: bool) -> Iterator[Race | Figure | str]:
    """The table of the design: throughput, latency, arming, and what is left behind."""
    times = 1 if small else 40
    with postgres(durable=not small) as server, ExitStack() as stack:
        dsn = server.create_database()
        admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        version = admin.execute("show server_version").fetchone()
        yield f"PostgreSQL {version and version[0]}, fsync on, on this machine; {CLIENTS} clients are threads"
        prepare(admin, 3 if small else 1000)
        clients = Clients(dsn, stack)
        ways = dict(WAYS)
        if missing := absent("django", "fencekit"):
            yield f"fencekit's queryset check: not run: no {', '.join(missing)} (extra `bench`)"
        else:
            djangos = Djangos(dsn)
            stack.callback(clients.on_each_thread, djangos.close)
            ways |= {"Django, unguarded": djangos.bare, "Django, fencekit's check": djangos.fenced}
        for jobs, goal in ((1, 0.95), (3 if small else 1000, 0.93)):
            yield Race(
                f"8 clients, 10 ms of work inside, {jobs} job{'s' * (jobs > 1)}",
                "transactions/s",
                {name: rate(clients, way, jobs, times) for name, way in ways.items()},
                "unguarded",
                {"transaction()": at_least(goal)},
                better="high",
            )
        for waits in (True, False):
            yield pipelined(admin, 3 if small else 300, waits)
        yield from left_behind(admin, clients, 2 if small else 250)
        seen: dict[str, list[float]] = {}
        yield arming(dsn, clients, small, seen)
        for name in ("transaction()", "guard(lock=True)"):
            yield Figure(f"the slowest arm of {len(seen[name])}, {name}", max(seen[name]), "ms", at_most(100))


def prepare(admin: psycopg.Connection, jobs: int) -> None:
    """Make the tables, and arm each job."""
    sinkfence_postgres.install(admin)
    admin.execute(TABLES)
    with admin.pipeline():
        for job in range(jobs):
            mine = token(job)
            admin.execute("select sinkfence.arm(%s, %s, %s)", (mine.job_id, mine.generation, mine.owner))
            admin.execute("insert into simple_mark values (%s, %s)", (mine.job_id, mine.generation))
    admin.execute("vacuum analyze")


def rate(clients: Clients, way: Way, jobs: int, times: int) -> Turn:
    """Make a turn of all clients at once; transactions per second."""

    def turn() -> float:
        before = time.perf_counter()
        clients.run(way, jobs, times, lambda: time.sleep(0.01))
        return CLIENTS * times / (time.perf_counter() - before)

    return turn


def pipelined(conn: psycopg.Connection, times: int, waits: bool) -> Race:
    """One client, one row, one message: what a guard costs where nothing else costs anything."""
    mine = token(0)
    ways = {
        "bare": [(WRITE, (0,))],
        "guarded": [
            ("select sinkfence.guard(%s, %s, %s)", (mine.job_id, mine.generation, mine.owner)),
            (WRITE, (0,)),
        ],
        "row column": [(WRITE_IF, (mine.generation, 0, mine.generation))],
        "upsert <= as the guard": [(UPSERT, (mine.job_id, mine.generation)), (WRITE, (0,))],
        "SELECT FOR SHARE": [(LOOK + " for share", (mine.job_id, mine.generation)), (WRITE, (0,))],
    }

    def work(statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        conn.execute(f"set synchronous_commit = {'on' if waits else 'off'}")
        for _ in range(times):
            with conn.pipeline():
                conn.execute("begin")
                for sql, params in statements:
                    conn.execute(sql, params)
                conn.execute("commit")

    return Race(
        f"one-row transaction in one message, synchronous_commit {'on' if waits else 'off'}",
        "ms",
        {
            name: timed(lambda statements=statements: work(statements), times=times, unit=0.001)
            for name, statements in ways.items()
        },
        "bare",
        {"guarded": at_most(1.35), "row column": at_most(1.0)},
    )


def arming(dsn: str, clients: Clients, small: bool, seen: dict[str, list[float]]) -> Race:
    """How long a successor waits for its mark while 8 writers are at work; more than 2 s count as 2 s."""
    times, patience = (1, "200ms") if small else (5, "2s")
    numbers = count(GENERATION + 1)
    generation = GENERATION

    def arm(conn: psycopg.Connection, number: int) -> None:
        mine = token(0, number)
        conn.execute("select sinkfence.arm(%s, %s, %s)", (mine.job_id, mine.generation, mine.owner))

    def raise_mark(conn: psycopg.Connection, number: int) -> None:
        conn.execute("update simple_mark set generation = %s where job = %s", (number, token(0).job_id))

    def turn_of(name: str, way: Way | None, step: Callable[[psycopg.Connection, int], None]) -> Turn:
        def writer(number: int, stopped: list[bool]) -> None:
            while way and not stopped:
                with suppress(StaleToken, NotArmed, AssertionError):  # the next token is read below
                    work = lambda: time.sleep(0.01)  # noqa: E731
                    way(clients.connections[number], token(0, generation), number, work)

        def turn() -> float:
            nonlocal generation
            stopped: list[bool] = []
            took: list[float] = []
            writers = [clients.threads.submit(writer, number, stopped) for number in range(CLIENTS)]
            try:
                with psycopg.connect(dsn, autocommit=True) as conn:
                    conn.execute(f"set statement_timeout = '{patience}'")
                    for _ in range(times):
                        time.sleep(0.02)  # all of them are at work
                        number, before = next(numbers), time.perf_counter()
                        with suppress(psycopg.errors.QueryCanceled):
                            step(conn, number)
                            generation = number
                        took.append((time.perf_counter() - before) * 1000)
            finally:
                stopped.append(True)
                wait(writers)
            for each in writers:
                each.result()
            seen.setdefault(name, []).extend(took)
            return statistics.median(took)

        return turn

    ways: dict[str, tuple[Way | None, Callable[[psycopg.Connection, int], None]]] = {
        "nobody at work": (None, arm),
        "transaction()": (guarded, arm),
        "guard(lock=True)": (locked, arm),
        "SELECT FOR SHARE": (for_share, raise_mark),
        "upsert <= as the guard": (upsert, raise_mark),
    }
    return Race(
        "a successor raises the mark behind 8 writers with 10 ms of work (2 s: gave up)",
        "ms",
        {name: turn_of(name, *way) for name, way in ways.items()},
        "nobody at work",
        rounds=7,
    )


def left_behind(admin: psycopg.Connection, clients: Clients, times: int) -> Iterator[Figure]:
    """What 8 clients leave behind, per transaction on one job: WAL, versions of the mark, MultiXacts."""
    names = ("unguarded", "transaction()", "guard(lock=True)", "SELECT FOR SHARE", "upsert <= as the guard")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for _ in range(4):
        for name in names:
            before = counters(admin, clients)
            clients.run(WAYS[name], 1, times, lambda: None)
            after = counters(admin, clients)
            found[name].append(tuple((b - a) / (CLIENTS * times) for a, b in zip(before, after, strict=True)))
    # What the server logs now and then by itself comes on top: the least is nearest to what was asked for.
    least = {name: [min(values) for values in zip(*found[name][1:], strict=True)] for name in names}
    for name in names[1:]:
        ours = name in WAYS and name in ("transaction()", "guard(lock=True)")
        bytes_, versions, multixacts = least[name]
        extra = round(bytes_ - least["unguarded"][0], 1)
        yield Figure(f"extra WAL per transaction, {name}", extra, "bytes", at_most(0.5) if ours else None)
        yield Figure(f"new versions of the mark, {name}", versions, "rows", at_most(0) if ours else None)
        yield Figure(f"MultiXacts, {name}", round(multixacts, 3), "ids", at_most(0) if ours else None)
    [size] = admin.execute("select pg_table_size('sinkfence.sealed') / 1024").fetchone() or [0]
    yield Figure("size of sinkfence.sealed (unlogged) after all of it", size, "kB")


def counters(admin: psycopg.Connection, clients: Clients) -> tuple[float, ...]:
    """Return bytes of WAL, updates of marks and MultiXacts so far."""
    for conn in clients.connections:
        conn.execute("select pg_stat_force_next_flush()")
    # Each page that is changed first after a checkpoint is logged whole: that comes before, and not within.
    clients.run(WAYS["unguarded"], 1, 1, lambda: None)
    found = admin.execute(
        "select pg_current_wal_insert_lsn() - '0/0', (select sum(n_tup_upd) from pg_stat_user_tables"
        " where relname in ('mark', 'simple_mark')), mxid_age('1')"
    ).fetchone()
    assert found
    return tuple(float(value) for value in found)
