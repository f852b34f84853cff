"""kill -9: of a worker that has not heard of its commit, and of PostgreSQL in the middle of one."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import psycopg

from sinkfence_trials.demo.process import PATIENCE
from sinkfence_trials.servers.cluster import Cluster
from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.torture.scenarios.actor import Actor
from sinkfence_trials.torture.scenarios.network import by_way_of, hold_next
from sinkfence_trials.torture.scenarios.scene import Scene, took_place

HELD_UP: Final = """
    CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER held_up AFTER INSERT ON torture_entry DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION held_up()"""
"""A COMMIT waits for whoever has the lock, before it has written its record."""

COMMITS: Final = """
    SELECT count(*) = 1 FROM pg_stat_activity
    WHERE application_name = %s AND state = 'active' AND query ILIKE 'commit%%' AND wait_event_type = %s"""


def worker(scene: Scene) -> None:
    """The answer to A's COMMIT is held, and A is killed; B repeats the step."""
    network = scene.proxy(scene.dsn)
    a = scene.actor("worker A", ledger=by_way_of(scene.dsn, network))
    b = scene.actor("worker B")
    a.holds()
    steps = iter(["the first bill", "the second bill"])
    stop = hold_next(network, lambda: a.does("write", step=next(steps)), "reply")
    a.order("write", step="the bill")
    stop.wait(PATIENCE)
    done = scene.look()
    took_place(len(done) == 3, "A's transaction is not committed")
    a.process.kill()
    b.holds()
    heard = b.does("write", step="the bill")
    scene.expect(heard.get("by") == done[-1], f"the step that was done is not known: {heard}")
    scene.expect(scene.look() == done, "the step was done again")
    b.does("write", step="the next bill")
    scene.look()
    b.does("leave")


def postmaster(scene: Scene) -> None:
    """PostgreSQL is killed within COMMIT, once before its record is written and once after it."""
    server = scene.have(postgres())
    ledger, cluster = server.create_database(), server.cluster
    assert cluster is not None
    scene.effects_in(ledger)
    with psycopg.connect(ledger) as conn:
        conn.execute(HELD_UP)
    a = scene.actor("worker A", ttl=300.0)
    a.holds()
    a.does("write", step="the first bill")
    before = scene.look()
    with closing(psycopg.connect(ledger, autocommit=True)) as conn:
        conn.execute("SELECT pg_advisory_lock(42)")
        heard = killed_in_commit(scene, a, cluster, "the second bill", "Lock")
    took_place(scene.look() == before, "it was committed when it was killed")
    repeated(scene, a, "the second bill", heard, again=True)
    with psycopg.connect(ledger, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")  # COMMIT waits for its standby
        conn.execute("SELECT pg_reload_conf()")
    scene.wait_for("the setting", "SELECT current_setting('synchronous_standby_names') = 'nobody'")
    heard = killed_in_commit(scene, a, cluster, "the third bill", "IPC")
    with psycopg.connect(ledger, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
        conn.execute("SELECT pg_reload_conf()")
    scene.wait_for("the setting", "SELECT current_setting('synchronous_standby_names') = ''")
    took_place(scene.look()[-1:] == [heard["id"]], "it was not committed when it was killed")
    repeated(scene, a, "the third bill", heard, again=False)
    a.does("leave")


def killed_in_commit(scene: Scene, a: Actor, cluster: Cluster, step: str, waits: str) -> dict[str, Any]:
    """Kill the server when pg_stat_activity shows A's COMMIT under way; return what A heard."""
    a.order("write", step=step)
    scene.wait_for(f"A's COMMIT waits ({waits})", COMMITS, a.name, waits)
    cluster.kill()
    heard = a.hear("write")
    scene.expect(heard.get("error") == "OutcomeUnknown", f"A heard {heard}")
    cluster.start()
    return heard


def repeated(scene: Scene, a: Actor, step: str, heard: dict[str, Any], *, again: bool) -> None:
    """A repeats the step: it is done now, or it is told that it was."""
    effects = len(scene.look())
    answer = a.does("write", step=step)
    by = answer["id"] if again else heard["id"]
    scene.expect(answer.get("by") == by, f"the repetition was answered by {answer}")
    scene.expect(len(scene.look()) == effects + again, f"{step} has not had its effect once")
