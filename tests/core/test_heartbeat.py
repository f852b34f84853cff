"""The heartbeat: driven by hand, one step at a time, and on its real threads."""

from __future__ import annotations

import ast
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import sinkfence
from sinkfence import LeaseLost, Leases, Token
from sinkfence.errors import Conflict
from sinkfence.grants import Renewals, Store
from sinkfence.leases.arming import arm_here
from sinkfence.leases.asking import InThreads
from sinkfence.leases.heartbeat import Heartbeat
from sinkfence.leases.lease import Lease
from sinkfence.leases.means import Means
from sinkfence.leases.once import Once
from sinkfence.leases.tenure import COMPLETED, RELEASED, Tenure
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore
from sinkfence.testing import HandClock

JOB = "invoice-42"
THEIRS = object()
"""Stands for a transaction of the caller's."""
TTL = 30.0


class ByHand:
    """A heartbeat without threads, over a store whose answers a test may bend."""

    def __init__(self, on_lost: Any) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        self.sent: list[list[str]] = []
        self.bend: Callable[[Renewals], Renewals] = lambda answer: answer
        self.heartbeat = Heartbeat(self, on_lost, self.clock)
        self.means = Means(
            store=self,
            asking=InThreads(self),
            beats=self,
            lease=Lease,
            arm=arm_here,
            pause=self.clock.advance,
            clock=self.clock,
        )
        self.heartbeat._start = lambda run: threading.Thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """Note what is sent, answer, and let the test do something before the answer arrives."""
        self.sent.append([token.job_id for token, _ in wanted])
        return self.bend(self.store.renew_many(wanted))

    def tell(self) -> None:
        """What the threads that watch and tell do when they wake up."""
        self.heartbeat.look()
        self.heartbeat.tell()

    def hold(self, job_id: str = JOB, interval: float = 10.0) -> tuple[Lease, Tenure]:
        """Acquire, and have the heartbeat renew it."""
        tenure = Tenure(self.store.acquire(job_id, "a:1", TTL), self.clock(), TTL, self.clock)
        lease = Lease(self.means, tenure)
        tenure.ended = lambda loss: self.heartbeat.ended(tenure, lease, loss)
        self.heartbeat.add(tenure, interval)
        return lease, tenure


@pytest.fixture
def hand(losses: Any) -> ByHand:
    """A heartbeat that beats and tells when it is told to."""
    return ByHand(losses)


def test_a_beat_extends_the_term(hand: ByHand) -> None:
    """What the store confirmed counts from before the sending."""
    lease, _ = hand.hold()
    hand.clock.advance(10)
    hand.bend = lambda answer: (hand.clock.advance(2), answer)[1]
    hand.heartbeat.beat()
    assert lease.remaining() == pytest.approx(TTL - 0.6 - 2)
    assert lease.lease_until == hand.store.get(JOB).lease_until


def test_leases_are_renewed_in_one_batch(hand: ByHand) -> None:
    """What is due soon goes along with what is due; what isn't, doesn't."""
    for i in range(3):
        hand.hold(f"job {i}", interval=10.0 + i)
    hand.hold("slow", interval=14.0)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    assert hand.sent == [["job 0", "job 1", "job 2"]]
    hand.clock.advance(1)
    hand.heartbeat.beat()
    assert hand.sent == [["job 0", "job 1", "job 2"], ["slow"]]


def test_an_error_is_not_a_loss(hand: ByHand, losses: Any) -> None:
    """Errors are retried until the term is over; then it is lost, told once, and nothing more is sent."""

    def fail(answer: Renewals) -> Renewals:
        raise ConnectionResetError

    hand.bend = fail
    lease, _ = hand.hold()
    for _ in range(9):
        hand.clock.advance(3)
        hand.heartbeat.beat()
        hand.tell()
    assert len(hand.sent) >= 5
    assert losses.heard == []
    assert lease.token.generation == 1
    hand.clock.advance(3)
    sent = len(hand.sent)
    hand.heartbeat.beat()
    assert len(hand.sent) == sent
    for _ in range(2):
        hand.tell()
    assert [(told, type(error)) for told, error in losses.heard] == [(lease, LeaseLost)]
    assert lease.lost.is_set()


def test_a_success_past_the_term_is_given_back(hand: ByHand, losses: Any) -> None:
    """A renewal answered after this side was told of the loss revives nothing: it is released."""

    def late(answer: Renewals) -> Renewals:
        hand.clock.advance(21)
        hand.tell()
        return answer

    lease, _ = hand.hold()
    hand.clock.advance(10)
    hand.bend = late
    hand.heartbeat.beat()
    assert lease.lost.is_set()
    assert len(losses.heard) == 1
    assert hand.store.get(JOB).owner is None
    with pytest.raises(LeaseLost):
        _ = lease.token


def test_a_renewal_in_flight_does_not_revive_what_is_released(hand: ByHand, losses: Any) -> None:
    """C16: released while a renewal is on its way: the record stays released, and nobody calls it a loss."""
    lease, tenure = hand.hold()

    def released_before(answer: Renewals) -> Renewals:
        lease.release()
        return answer

    hand.clock.advance(10)
    hand.bend = released_before
    hand.heartbeat.beat()
    assert tenure.remaining() == 0.0
    assert hand.store.get(JOB).owner is None
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert len(hand.sent) == 1
    assert losses.heard == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_completion_in_flight_is_not_taken_for_a_loss(hand: ByHand, losses: Any, commits: bool) -> None:
    """A batch that reads the row which a complete has just changed waits for that complete's own answer."""
    lease, tenure = hand.hold()
    hand.clock.advance(10)
    with tenure.settling(COMPLETED, None):
        hand.store.complete(tenure.token, None)
        hand.heartbeat.beat()
        assert lease.token.generation == 1
    if not commits:
        hand.store.reopen(JOB)
        hand.store.acquire(JOB, "b:2", TTL)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert len(losses.heard) == (0 if commits else 1)
    with pytest.raises(LeaseLost):
        _ = lease.token


@pytest.mark.parametrize(("passes", "heard"), [(0, 0), (60, 1)])
def test_who_comes_after_a_release_of_the_callers_is_no_loss(
    hand: ByHand, losses: Any, passes: float, heard: int
) -> None:
    """Released by a transaction that may be committed, and taken within the term: given back, not lost."""
    _, tenure = hand.hold()
    with tenure.settling(RELEASED, THEIRS):
        hand.store.release(tenure.token)
    hand.store.acquire(JOB, "b:2", TTL)
    hand.clock.advance(10)
    hand.bend = lambda answer: (hand.clock.advance(passes), answer)[1]
    hand.heartbeat.beat()
    hand.tell()
    assert len(losses.heard) == heard
    assert tenure.remaining() == 0.0


@pytest.mark.parametrize("what", [RELEASED, COMPLETED])
def test_an_end_that_was_rolled_back_excuses_no_later_loss(hand: ByHand, losses: Any, what: str) -> None:
    """A renewal that succeeds after an end in the caller's transaction shows that it was rolled back."""
    lease, tenure = hand.hold()
    with tenure.settling(what, THEIRS):
        pass
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.store.reopen(JOB)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert [told for told, _ in losses.heard] == [lease]


def test_a_release_that_was_refused_excuses_nothing(hand: ByHand) -> None:
    """What the caller's transaction was refused has not released it: who comes after it is a loss."""
    for refused in (LeaseLost(Token(JOB, 1, "a:1"), "seen"), Conflict("an old snapshot"), TypeError()):
        lease, tenure = hand.hold(type(refused).__name__)
        with pytest.raises(type(refused)), tenure.settling(RELEASED, THEIRS):
            raise refused
        hand.store.reopen(lease.job_id)
        hand.store.acquire(lease.job_id, "b:2", TTL)
        with pytest.raises(LeaseLost):
            lease.release()


def test_a_renewal_sent_before_a_release_says_nothing_of_it(hand: ByHand, losses: Any) -> None:
    """A renewal that was under way while the caller's transaction released is no sign of a rollback."""
    _, tenure = hand.hold()

    def released_before(answer: Renewals) -> Renewals:
        with tenure.settling(RELEASED, THEIRS):
            hand.store.release(tenure.token)
        return answer

    hand.clock.advance(10)
    hand.bend = released_before
    hand.heartbeat.beat()
    hand.store.acquire(JOB, "b:2", TTL)
    hand.bend = lambda answer: answer
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert losses.heard == []


def test_what_is_offered_second_is_not_the_first_though_it_is_the_same() -> None:
    """Two that end a lease for the same reason are told apart: one of them, and one only, has it told."""
    once: Once[str] = Once()
    assert once.value is None
    assert [once.offer(why) for why in (RELEASED, RELEASED, COMPLETED)] == [True, False, False]
    assert once.value == RELEASED


def test_a_loss_is_seen_and_told(hand: ByHand, losses: Any) -> None:
    """A record that is somebody else's is a loss at the next beat; the other leases go on."""
    lease, _ = hand.hold()
    other, _ = hand.hold("other")
    hand.store.reopen(JOB)
    hand.store.acquire(JOB, "b:2", TTL)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert [told for told, _ in losses.heard] == [lease]
    assert other.remaining() == pytest.approx(TTL - 0.6)


def test_an_operators_release_is_a_loss(hand: ByHand, losses: Any) -> None:
    """A record that somebody else freed under the same number is lost: this side did not do it."""
    lease, _ = hand.hold()
    hand.store.reopen(JOB)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    hand.tell()
    assert [told for told, _ in losses.heard] == [lease]


def test_a_skipped_row_is_tried_again_soon(hand: ByHand, losses: Any) -> None:
    """A lease whose row was locked is neither renewed nor lost, and doesn't wait for the next beat."""
    lease, _ = hand.hold()
    hand.clock.advance(10)
    hand.bend = lambda answer: Renewals({}, frozenset(), {})
    hand.heartbeat.beat()
    assert lease.remaining() == pytest.approx(TTL - 0.6 - 10)
    hand.bend = lambda answer: answer
    hand.clock.advance(3)
    hand.heartbeat.beat()
    assert lease.remaining() == pytest.approx(TTL - 0.6)
    hand.tell()
    assert losses.heard == []


@pytest.mark.parametrize("failure", [ZeroDivisionError, SystemExit])
def test_a_failing_callback_does_not_keep_others_from_being_told(
    caplog: Any, failure: type[BaseException]
) -> None:
    """An on_lost that raises, or exits, is logged; every other loss is told all the same."""
    told: list[str] = []

    def on_lost(lease: Lease, error: Exception) -> None:
        told.append(lease.job_id)
        raise failure

    hand = ByHand(on_lost)
    for job_id in ("one", "two"):
        hand.hold(job_id)
    hand.clock.advance(TTL)
    hand.tell()
    assert told == ["one", "two"]
    assert caplog.text.count("on_lost failed") == 2


def test_what_ended_before_it_was_added_is_not_watched(hand: ByHand) -> None:
    """A manager closed between an acquire and its heartbeat leaves nothing that beats or spins."""
    lease, tenure = hand.hold()
    lease.release()
    hand.heartbeat.add(tenure, 10.0)
    hand.clock.advance(10)
    hand.heartbeat.beat()
    assert hand.sent == []
    assert not hand.heartbeat._beating


def test_renewals_may_overtake_each_other(hand: ByHand) -> None:
    """An older answer that arrives later doesn't shorten the term."""
    lease, tenure = hand.hold()
    first = hand.clock()
    hand.clock.advance(10)
    lease.renew()
    until = lease.lease_until
    assert tenure.extend(first + 1, until)
    assert lease.remaining() == pytest.approx(TTL - 0.6)


# On its threads.


def threads() -> list[threading.Thread]:
    """The heartbeat's threads."""
    return [thread for thread in threading.enumerate() if thread.name == "sinkfence-heartbeat"]


@pytest.fixture
def heartbeats() -> Iterator[Callable[[], list[threading.Thread]]]:
    """Tells the heartbeat's threads, of which nothing may be left at the end."""
    yield threads
    for thread in threads():
        thread.join(20)
    assert threads() == []


def test_a_held_lease_outlives_its_ttl_and_its_threads_end(
    store: Store, heartbeats: Any, leases_of: Callable[..., Leases]
) -> None:
    """While it is held a lease is renewed, in the store and here; the release ends the threads."""
    with leases_of(store, ttl=1.0, heartbeat=0.02).hold(JOB) as lease:
        first = lease.lease_until
        while (lease.lease_until - first).total_seconds() < 1.5:
            assert not lease.lost.wait(0.01)
        assert store.get(JOB).owner == lease.token.owner
        assert len(heartbeats()) == 2
        ending = heartbeats()
    for thread in ending:
        thread.join(20)
    assert heartbeats() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_missed_by_the_next_lease(leases_of: Callable[..., Leases]) -> None:
    """Whatever ends a heartbeat's thread, the next lease that is held starts another."""

    class Exits(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.thread: threading.Thread | None = None
            self.exits = threading.Event()

        def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
            if self.thread is None:
                self.thread = threading.current_thread()
                self.exits.set()
                raise SystemExit
            return super().renew_many(wanted)

    store = Exits()
    leases = leases_of(store, ttl=30.0, heartbeat=0.02)
    with leases.hold("one"):
        assert store.exits.wait(20)
        store.thread.join(20)
        with leases.hold("two") as two:
            first = two.lease_until
            while two.lease_until == first:
                assert leases._holders.open()._heartbeat._renewing.is_alive()


def test_a_takeover_is_told_once_on_the_heartbeats_thread(
    store: Store, leases_of: Callable[..., Leases], losses: Any, heartbeats: Any
) -> None:
    """The body is told by event, callback and next token, and is not killed."""
    leases = leases_of(store, ttl=30.0, heartbeat=0.02, on_lost=losses)
    with pytest.raises(LeaseLost), leases.hold(JOB) as lease:
        store.reopen(JOB)
        store.acquire(JOB, "b:2", 30.0)
        assert lease.lost.wait(20)
        with pytest.raises(LeaseLost):
            _ = lease.token
    assert losses.event.wait(20)
    for thread in heartbeats():
        thread.join(20)
    assert [told for told, _ in losses.heard] == [lease]
    assert losses.threads == ["sinkfence-heartbeat"]


def test_a_callback_that_takes_its_time_keeps_no_other_loss_waiting(leases_of: Callable[..., Leases]) -> None:
    """`lost` is set at each lease's own time, while on_lost of another is still at work."""
    go, began, told = threading.Event(), threading.Event(), []

    def on_lost(lease: Lease, error: Exception) -> None:
        began.set()
        go.wait()
        told.append(lease.job_id)

    class Gone(MemoryStore):
        def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
            raise ConnectionResetError

    leases = leases_of(Gone(), ttl=60.0, on_lost=on_lost)
    try:
        with (
            suppress(LeaseLost),
            leases.hold("one", ttl=0.1) as one,
            leases.hold("two", ttl=0.5) as two,
        ):
            assert one.lost.wait(20)
            assert began.wait(20)
            assert two.lost.wait(20)
            assert told == []
    finally:
        go.set()
    for thread in threads():
        thread.join(20)
    assert told == ["one", "two"]


def test_a_store_out_of_reach_is_a_loss_by_the_terms_end(
    far: SqlStore, pg: SqlStore, wire: Any, losses: Any
) -> None:
    """C10: cut off from the store alone, the owner is told by its own deadline."""
    leases = Leases(far, ttl=0.6, on_lost=losses)
    held = leases.hold(JOB)
    lease = held.__enter__()
    wire.swallow = True
    assert losses.event.wait(20)
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost):
        _ = lease.token
    b = Leases(pg).acquire(JOB, wait=20)
    assert b.generation == 2
    wire.close()
    with pytest.raises(Exception, match=r".+"):
        held.__exit__(None, None, None)
    b.renew()


def test_a_heartbeat_that_cannot_connect_is_told_at_the_entry(
    pg_url: str, admin: psycopg.Connection, open_store: Any, leases_of: Callable[..., Leases]
) -> None:
    """A role with one connection acquires by it: hold() says so before its body, and gives the job back."""
    role = f"single_{secrets.token_hex(4)}"
    admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}' CONNECTION LIMIT 1")
    try:
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON sinkfence_lease TO {role}")
        admin.execute(f"GRANT SELECT ON sinkfence_schema TO {role}")
        store = open_store(sa.make_url(pg_url).set(username=role, password=role))
        leases = leases_of(store)
        with pytest.raises(sa.exc.OperationalError, match="too many connections") as told, leases.hold(JOB):
            pytest.fail("the body must not run")
        assert "besides the one that acquires" in str(told.value.__notes__)
        assert leases.get(JOB).owner is None
        leases.close()
    finally:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_a_locked_row_costs_no_other_lease(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases], losses: Any
) -> None:
    """While somebody's transaction has one row, the others are renewed; that one is, once it is free."""
    leases = leases_of(pg, ttl=20.0, heartbeat=0.05, on_lost=losses)
    with leases.hold("locked") as locked, leases.hold("free") as free:
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT FROM sinkfence_lease WHERE job_id = 'locked' FOR UPDATE")
            before, since = locked.lease_until, free.lease_until
            while (free.lease_until - since).total_seconds() < 0.5:
                assert not free.lost.wait(0.01)
            stalled = locked.lease_until
            other.rollback()
        while locked.lease_until <= stalled:
            assert not locked.lost.wait(0.01)
        assert (stalled - before).total_seconds() < 0.5
    assert losses.heard == []


def test_only_terms_reads_a_local_clock() -> None:
    """C54, C58: wall-clock steps and skew can't matter to what no module of the lease manager reads."""
    root = Path(sinkfence.__file__).parent
    files = [*root.glob("*.py"), *(root / "stores" / "sql").glob("*.py")]
    clocks = {"time", "monotonic", "clock_gettime", "perf_counter", "now", "utcnow", "today", "time_ns"}
    found = {
        (path.name, f"{node.func.value.id}.{node.func.attr}")
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"time", "datetime"}
        and node.func.attr in clocks
    }
    assert found == {("terms.py", "time.clock_gettime")}
