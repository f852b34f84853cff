"""Ways to take a lease, renew it and be done with it: plain UPDATEs, sinkfence's, and other libraries'.

Before the first turn, each way's tables hold what it keeps of so many jobs that are free: a row each, but for
stormlock, which keeps nothing of a lock that was given back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import chain, count
from typing import Any
from unittest.mock import Mock

import psycopg
import sqlalchemy as sa

from bench.race import absent
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore

Way = Callable[[str], None]
"""A whole turn at a job."""

TTL = 300.0
PLAIN = """
    create table plain (job_id text collate "C" primary key, generation bigint, owner text,
        lease_until timestamptz, state text, result jsonb) with (fillfactor = 70)
"""
TURN = (
    "update plain set generation = generation + 1, owner = %s, lease_until = clock_timestamp() + '300 s'"
    " where job_id = %s and lease_until < clock_timestamp()",
    "update plain set lease_until = clock_timestamp() + '300 s' where owner = %s and job_id = %s",
    "update plain set state = 'done', lease_until = '-infinity' where owner = %s and job_id = %s",
)
STORMLOCK = """
    create table stormlock (resource text primary key, lease uuid not null, principal text not null,
        created timestamptz not null default current_timestamp, expires timestamptz not null)
"""


class PerThread:
    """What each thread has of its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._local = make, threading.local()

    def __call__(self) -> Any:
        if not hasattr(self._local, "it"):
            self._local.it = self._make()
        return self._local.it


def ways(
    dsn: str, admin: psycopg.Connection, jobs: int, stack: ExitStack
) -> tuple[dict[str, Way], list[str]]:
    """Fill the tables with jobs that are free, and return the ways, and what could not be had."""
    engine = sa.create_engine(
        dsn.replace("postgresql:", "postgresql+psycopg:"), pool_size=8, isolation_level="AUTOCOMMIT"
    )
    stack.callback(engine.dispose)
    store = SqlStore(engine)
    store.create_schema()
    # As behind a pooler.
    unprepared = sa.create_engine(engine.url, pool_size=8, connect_args={"prepare_threshold": None})
    admin.execute(PLAIN)
    for table in "sinkfence_lease", "plain":
        admin.execute(
            f"insert into {table} (job_id, generation, lease_until, state)"
            f" select 'jobs/' || n, 1, '-infinity', 'open' from generate_series(1, {jobs}) n"
        )
    connected = PerThread(lambda: stack.enter_context(psycopg.connect(dsn, autocommit=True)))
    turns = count()

    def plain(job: str) -> None:
        owner = f"a:{next(turns)}"
        for statement in TURN:
            connected().execute(statement, (owner, job))

    statements = [sa.text(sql.replace("= %s", "= :owner", 1).replace("%s", ":job")) for sql in TURN]

    def by_sqlalchemy(job: str) -> None:
        owner = f"a:{next(turns)}"
        for statement in statements:
            with engine.connect() as conn:
                conn.execute(statement, {"owner": owner, "job": job})

    def ours(store: SqlStore) -> Way:
        leases = Leases(store, ttl=TTL)
        stack.callback(leases.close)

        def turn(job: str) -> None:
            lease = leases.acquire(job)
            lease.renew()
            lease.complete()

        return turn

    found: dict[str, Way] = {
        "plain UPDATEs": plain,
        "plain, by SQLAlchemy": by_sqlalchemy,
        "sinkfence": ours(store),
        "sinkfence, nothing prepared": ours(SqlStore(unprepared)),
    }
    others = {"stormlock": storming, "sentinel": sentinels, "mithril": mithrils}
    missing = absent(*others)
    for name in sorted(others.keys() - set(missing)):
        found[name] = others[name](dsn, admin, jobs, stack)
    admin.execute("vacuum analyze")
    return found, missing


def storming(dsn: str, admin: psycopg.Connection, jobs: int, stack: ExitStack) -> Way:
    from stormlock.backends.postgresql import Postgresql

    admin.execute(STORMLOCK)
    ttl = timedelta(seconds=TTL)

    def connect() -> Any:
        backend = Postgresql(dsn)
        stack.callback(backend.close)
        return backend

    backends = PerThread(connect)

    def turn(job: str) -> None:
        lock = backends()
        lease = lock.lock(job, "a", ttl)
        lock.renew(job, lease, ttl)
        lock.unlock(job, lease)

    return turn


def sentinels(dsn: str, admin: psycopg.Connection, jobs: int, stack: ExitStack) -> Way:
    from sentinel.core import acquire, complete, heartbeat, start_execution
    from sentinel.db import init_db

    with psycopg.connect(dsn) as conn:
        init_db(conn)
    admin.execute(
        "insert into sentinel_leases (key, owner_id, lease_expires_at, hard_expires_at)"
        f" select 'jobs/' || n, 'a', now(), now() from generate_series(1, {jobs}) n"
    )
    connected = PerThread(lambda: stack.enter_context(psycopg.connect(dsn)))
    ttl = int(TTL * 1000)

    def turn(job: str) -> None:
        conn = connected()
        lease = acquire(conn, job, ttl_ms=ttl)
        mine = {"owner_id": lease.owner_id, "fencing_token": lease.fencing_token}
        started = start_execution(conn, job, **mine)  # without it nothing is renewed
        renewed = heartbeat(conn, job, **mine, ttl_ms=ttl)
        done = complete(conn, job, **mine)
        if not (lease.acquired and started.success and renewed.success and done.success):
            raise AssertionError(f"{job} was not acquired, renewed and completed")

    return turn


def mithrils(dsn: str, admin: psycopg.Connection, jobs: int, stack: ExitStack) -> Way:
    from mithril import Lock, configure_logging
    from mithril.backends import PostgresBackend
    from mithril.exceptions import MithrilError

    # Two lines on the terminal for each turn would be what is measured.
    configure_logging(processors=[lambda *_: ""], logger_factory=lambda *_: Mock())

    engine = sa.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), pool_size=8)
    stack.callback(engine.dispose)
    backend = PostgresBackend(engine)
    admin.execute(
        f"insert into mithril_fencing (name, token) select 'jobs/' || n, 1 from generate_series(1, {jobs}) n"
    )

    def turn(job: str) -> None:
        # Its transactions are serializable: among other clients they conflict, it gives up, and starts over.
        for name in chain([job], (f"{job}/{attempt}" for attempt in count())):
            lock = Lock(name, backend=backend, ttl=TTL)
            with suppress(MithrilError):
                lock.acquire()
                lock.renew()
                lock.release()
                return

    return turn
