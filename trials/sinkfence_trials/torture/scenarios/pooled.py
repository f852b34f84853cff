"""Through PgBouncer in transaction mode: a stopped owner's transaction, and what the next client finds."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final
from urllib.parse import parse_qs, urlsplit

import psycopg

from sinkfence_trials.demo.process import PATIENCE
from sinkfence_trials.servers.pooler import PGBOUNCER, pgbouncer
from sinkfence_trials.torture.run import NotRun
from sinkfence_trials.torture.scenarios.network import by_way_of, hold_next
from sinkfence_trials.torture.scenarios.scene import Scene, took_place

POOL: Final = 3
"""Connections: A may be stopped in a renewal as well as within its COMMIT, and keep two of them."""

LEFT: Final = """
    SELECT pg_backend_pid(),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        coalesce(current_setting('sinkfence.held', true), ''), (SELECT count(*) FROM sinkfence.sealed),
        (SELECT count(*) FROM pg_prepared_statements)"""
"""Locks, guards and statements of a server process that everybody shares."""

OPEN: Final = """
    SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()
        AND state = 'idle in transaction' AND application_name = %s"""


def pooler(scene: Scene) -> None:
    """Leases and effects go through it. A is stopped with its COMMIT under way, B takes over, A goes on."""
    if PGBOUNCER is None:
        raise NotRun("there is no pgbouncer on the PATH")
    pool = scene.have(pgbouncer(scene.dsn, pool=POOL, search_path=schema_of(scene.dsn)))
    network = scene.proxy(pool)
    a = scene.actor("worker A", leases=pool, ledger=by_way_of(pool, network))
    b = scene.actor("worker B", leases=pool, ledger=pool)
    a.holds()
    stop = hold_next(network, lambda: a.does("write"), "request")
    a.order("write")
    stop.wait(PATIENCE)
    scene.wait_for("A's transaction is open", OPEN, a.name)
    a.process.stop()
    generation = b.holds()
    scene.expect(b.does("write")["outcome"] == "ok", "the successor's write was not accepted")
    scene.look()
    stop.release()
    a.process.go_on()
    heard = a.hear("write")
    scene.expect(heard.get("mark") == generation, f"the late write was answered by {heard}")
    scene.ends(b)
    looks_at_all(scene, pool)


def looks_at_all(scene: Scene, pool: str) -> None:
    """Look at what the next clients find, in transactions at once: those are on all connections."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pool)) for _ in range(POOL)]
        found = [client.execute(LEFT).fetchone() for client in clients]
    pids = {row[0] for row in found if row}
    took_place(len(pids) == POOL, f"these were not all connections: {pids}")
    held = [row[1:] for row in found if row]
    scene.expect(held == [(0, "", 0, 0)] * POOL, f"something is left in the shared connections: {held}")


def schema_of(dsn: str) -> str:
    """Where the run's tables are: a pooler's clients cannot say it in their startup options."""
    options = parse_qs(urlsplit(dsn).query).get("options", [""])[0]
    return options.partition("search_path=")[2]
