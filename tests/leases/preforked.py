"""A module of a program whose workers are forked: its leases stand at module level, and were used before."""

from __future__ import annotations

import os

import psycopg

from sinkfence import JobCompleted, LeaseHeld, LeaseLost, Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink

URL = os.environ["LEASES_URL"]
leases = Leases(SqlStore(URL), ttl=60, heartbeat=0.05)
sink = PostgresSink(URL)
holding = leases.hold("the parent's")
parents = holding.__enter__()  # the parent has connections and a beating heartbeat when it forks
PARENT = os.getpid()
REFUSED = "select from told where what = 'held' and job = %s"


def charge(number: int) -> str:
    """Charge once, however often the task is delivered, also while it runs."""
    try:
        _ = parents.token
        inherited = "a lease"
    except LeaseLost:
        inherited = "no lease"
    with psycopg.connect(URL, autocommit=True) as conn:
        try:
            with leases.hold(f"charge/{PARENT}/{number}", arm=[sink]) as lease:
                # Goes on when another worker was refused: so two have been at it at the same time.
                while not conn.execute(
                    "select from told where what = 'held' and job = %s", (number,)
                ).rowcount:
                    conn.execute("select pg_sleep(0.02)")
                with sink.begin(lease) as guarded:
                    guarded.execute("insert into charge values (%s, %s)", (number, lease.generation))
                lease.complete()
            what = "charged"
        except LeaseHeld:
            what = "held"
        except JobCompleted:
            what = "completed"
        assert os.getpid() != PARENT
        conn.execute("insert into told values (%s, %s, %s, %s)", (number, what, os.getpid(), inherited))
    return what
