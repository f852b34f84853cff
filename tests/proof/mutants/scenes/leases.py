"""Scenes in the store of leases, and at a manager that uses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import psycopg

from mutants.scenes import Ground, Scene, begun
from mutants.scenes.counters import LONG, SHORT, Counter, in_a_store
from mutants.scenes.databases import admin, blocked_or_done, killed, one
from sinkfence import Leases
from sinkfence.errors import LeaseHeld, StaleToken
from sinkfence.marks import MemoryMarks
from sinkfence.tokens import Token
from sinkfence_trials.history import Event


@in_a_store()
def turns(scene: Counter) -> None:
    """A runs out and B takes over; then A renews, completes and releases; B completes."""
    a = scene.acquire("A")
    scene.expired()
    b = scene.acquire("B", LONG)
    for who, token in (("A", a), ("B", b)):
        if token:
            scene.renew(who, token, LONG)
            scene.complete(who, token, f"result of {who}")


@in_a_store()
def same_owner(scene: Counter) -> None:
    """A acquires twice under one owner value; its first turn's renewal comes late."""
    first = scene.acquire("A", owner="A:1")
    scene.expired()
    scene.acquire("A", LONG, owner="A:1")
    if first:
        scene.renew("A", first)


@in_a_store()
def live(scene: Counter) -> None:
    """B asks for what A holds."""
    scene.acquire("A", LONG)
    scene.acquire("B", LONG)


@in_a_store()
def wrong_clock(scene: Counter) -> None:
    """A's wall clock is an hour ahead."""
    ahead = time.time() + 3600
    with patch("time.time", lambda: ahead):
        scene.acquire("A", LONG)


@in_a_store()
def kept_waiting(scene: Counter) -> None:
    """A's renewal waits for somebody's transaction that has changed the row."""
    a = scene.acquire("A", LONG)
    assert a is not None
    with psycopg.connect(scene.dsn) as other:
        other.execute("update sinkfence_lease set result = null where job_id = %s", (scene.job,))
        renewing = begun(scene.store.renew, a, LONG)
        assert blocked_or_done(scene.conn, renewing)
        one(scene.conn, "select 'waited' from pg_sleep(0.005)")  # longer than the clocks' grain
        since = scene.now()
        other.commit()
    scene.granted("A", "renew", a, renewing.result(30).timestamp(), LONG, since)


@in_a_store()
def completed(scene: Counter) -> None:
    """A completes, and repeats it; B comes later."""
    a = scene.acquire("A", LONG)
    assert a is not None
    scene.complete("A", a)
    scene.complete("A", a)
    scene.acquire("B", LONG)


@in_a_store()
def released(scene: Counter) -> None:
    """A releases, and a renewal that was under way arrives after it."""
    a = scene.acquire("A", LONG)
    assert a is not None
    scene.release("A", a)
    scene.renew("A", a, LONG)


@in_a_store(floor="clock")
def failover(scene: Counter) -> None:
    """The store goes over to a standby that has not heard of the job."""
    first = scene.acquire("A", LONG)
    assert first is not None
    scene.release("A", first)
    scene.acquire("A", LONG)
    scene.events.append(Event(time.monotonic(), "scene", "failover", "invoke", ""))
    scene.tampered("delete from sinkfence_lease")
    one(scene.conn, "select 'a later millisecond' from pg_sleep(0.002)")
    scene.events.append(Event(time.monotonic(), "scene", "failover", "ok", ""))
    scene.acquire("B", LONG)


def crash(ground: Ground) -> Scene:
    """B acquires from a session that does not wait for the disk; the server is killed; C asks."""
    with admin(ground.dsn) as conn:
        scene = Counter(ground, conn)
        scene.acquire("A", SHORT)
        scene.expired()
        scene.store.close()
    with killed(ground), admin(ground.dsn) as conn:
        scene.conn, scene.store = conn, scene.open(synchronous_commit="off")
        scene.acquire("B", LONG)
        scene.store.close()
    with admin(ground.dsn) as conn:
        scene.conn, scene.store = conn, scene.open()
        scene.acquire("C", LONG)
        scene.store.close()
    return scene


@in_a_store()
def batch(scene: Counter) -> None:
    """Leases of three jobs are renewed at once, while a transaction is frozen that has locked one of them."""
    tokens = [scene.store.acquire(f"batch/{n}", f"A:{n}", LONG).token for n in range(3)]
    with psycopg.connect(scene.dsn) as frozen:
        frozen.execute("select from sinkfence_lease where job_id = 'batch/1' for update")
        renewing = begun(scene.store.renew_many, [(token, LONG) for token in tokens])
        if blocked_or_done(scene.conn, renewing):
            scene.break_("L1", "the leases of other jobs are not renewed while one job's row is locked")
        frozen.rollback()
    renewing.result(30)


@in_a_store()
def one_manager(scene: Counter) -> None:
    """Two callers of one manager ask for one job."""
    with Leases(scene.store, ttl=LONG) as leases:
        for who in ("A", "B"):
            since = scene.now()
            try:
                lease = leases.acquire(scene.job)
            except LeaseHeld:
                continue
            scene.granted(who, "acquire", lease.token, lease.lease_until.timestamp(), LONG, since)


class Overtaken:
    """A sink; before it is armed by the first that comes, somebody else takes over."""

    durable = True

    def __init__(self, before: Callable[[MemoryMarks], None]) -> None:
        self.marks, self.before = MemoryMarks(), [before]

    def arm(self, bearer: Any) -> None:
        if self.before:
            self.before.pop()(self.marks)
        self.marks.arm(bearer)


@in_a_store()
def overtaken_before_arming(scene: Counter) -> None:
    """A is stopped between acquiring and arming; B takes over and arms; A goes on inside hold()."""

    def take_over(marks: MemoryMarks) -> None:
        scene.expired()
        b = scene.acquire("B", LONG)
        assert b is not None
        marks.arm(b)

    # A's clock stands still: it believes that its lease runs, and renews nothing.
    leases = Leases(scene.store, ttl=SHORT, _clock=lambda: 1000.0)
    try:
        with leases.hold(scene.job, arm=[Overtaken(take_over)]) as lease:
            now = scene.now()
            scene.granted("A", "acquire", lease.token, lease.lease_until.timestamp(), SHORT, now - SHORT)
    except StaleToken:
        pass
    else:
        scene.break_("L3", "hold() did not tell that somebody has taken over")


@in_a_store()
def refused_in_the_body(scene: Counter) -> None:
    """A sink refuses A inside hold()."""
    marks = MemoryMarks()
    leases = Leases(scene.store, ttl=LONG)
    try:
        with leases, leases.hold(scene.job) as lease:
            marks.arm(Token(scene.job, lease.generation + 1, "B:1"))
            marks.arm(lease)
    except StaleToken:
        pass
    else:
        scene.break_("L3", "the refusal was swallowed, and the program goes on as if it had been done")
