"""hold() and what a lease does: arming, the repair of a store that went back, leaving."""

from __future__ import annotations

import concurrent.futures
import inspect
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count, product
from typing import Any

import pytest
import sqlalchemy as sa

from sinkfence import (
    JobCompleted,
    LeaseHeld,
    LeaseLost,
    Leases,
    NotEnforced,
    OutcomeUnknown,
    StaleToken,
    Token,
    aio,
)
from sinkfence.errors import GenerationConflict
from sinkfence.grants import Grant, Store
from sinkfence.leases import waits
from sinkfence.marks import Mark, MemoryMarks
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.testing import HandClock

JOB = "invoice-42"
MakeLeases = Callable[..., Leases]


def take_over(store: Store, owner: str = "b:2") -> Token:
    """Be B, after A's lease has ended by the store's clock; what ends it is an operator, who is quicker."""
    store.reopen(JOB)
    return store.acquire(JOB, owner, 30.0).token


class AheadSink(MemoryMarks):
    """A sink that says that it has seen more than whatever is shown, by a distance."""

    def __init__(self, distance: int) -> None:
        super().__init__()
        self.distance = distance
        self.shown: list[int] = []

    def arm(self, bearer: Any) -> None:
        """Refuse."""
        self.shown.append(bearer.token.generation)
        raise StaleToken(bearer.token, bearer.token.generation + self.distance)


def test_hold_arms_before_the_body_and_releases_after_it(store: Store, leases_of: MakeLeases) -> None:
    """The sinks know the new owner before the body reads anything; at the end the job is free."""
    sinks = [MemoryMarks(), MemoryMarks()]
    with leases_of(store).hold(JOB, arm=sinks) as lease:
        assert [sink.mark(JOB) for sink in sinks] == [Mark(1, lease.token.owner)] * 2
        assert store.get(JOB).owner == lease.token.owner
        assert lease.generation == 1
        assert lease.job_id == JOB
        assert 25 < lease.remaining() < 30
        assert lease.lease_until == store.get(JOB).lease_until
        assert lease.key("mail") == lease.token.key("mail")
    assert store.get(JOB).owner is None
    assert not lease.lost.is_set()
    assert lease.remaining() == 0.0
    with pytest.raises(LeaseLost, match="released"):
        _ = lease.token


def test_a_completed_job_is_not_acquired_again(store: Store, leases_of: MakeLeases) -> None:
    """complete() is for ever, and its result reaches whoever asks for the job."""
    leases = leases_of(store)
    with leases.hold(JOB) as lease:
        lease.complete({"rows": 17})
        lease.complete({"rows": 17})
    with pytest.raises(JobCompleted) as done, leases.hold(JOB):
        pass
    assert done.value.result == {"rows": 17}
    assert leases.reopen(JOB).state == "open"
    with leases.hold(JOB) as lease:
        assert lease.generation == 2


def test_the_bodys_error_passes_and_the_job_is_released(store: Store, leases_of: MakeLeases) -> None:
    """An error of the body comes out as it is."""
    with pytest.raises(ZeroDivisionError), leases_of(store).hold(JOB):
        _ = 1 / 0
    assert store.get(JOB).owner is None


def test_a_body_that_returns_after_a_takeover_raises(store: Store, leases_of: MakeLeases) -> None:
    """C03: the context manager of an owner that was replaced raises, and B keeps its record."""
    with pytest.raises(LeaseLost), leases_of(store).hold(JOB):
        b = take_over(store)
    store.renew(b, 30.0)


def test_a_takeover_does_not_hide_the_bodys_error(store: Store, leases_of: MakeLeases) -> None:
    """At the exit LeaseLost is logged and not raised over the body's own error."""
    with pytest.raises(ZeroDivisionError), leases_of(store).hold(JOB):
        take_over(store)
        _ = 1 / 0


def test_a_completion_after_a_takeover_carries_its_result(
    store: Store, leases_of: MakeLeases, losses: Any
) -> None:
    """Nothing is dropped in silence: the result is on the error, and on_lost hears of the same one."""
    leases = leases_of(store, on_lost=losses)
    with pytest.raises(LeaseLost) as lost, leases.hold(JOB) as lease:
        take_over(store)
        lease.complete({"rows": 17})
    assert lost.value.result == {"rows": 17}
    assert losses.event.wait(10)
    assert losses.heard == [(lease, lost.value)]
    assert lease.lost.is_set()


def nested(depth: int) -> Any:
    """A result of so many lists in each other."""
    result: Any = '[[]] \\" {'
    for _ in range(depth):
        result = [result]
    return result


@pytest.mark.parametrize(
    ("result", "error"),
    [
        *(("x" * 65_535, ValueError), (float("nan"), ValueError), ({1, 2}, TypeError)),
        *((nested(101), ValueError), ({"deep": nested(100)}, ValueError), (nested(20_000), ValueError)),
    ],
    ids=["long", "nan", "set", "deep", "deep in an object", "bottomless"],
)
def test_a_result_is_json_and_not_too_long(
    store: Store, leases_of: MakeLeases, result: object, error: type[Exception]
) -> None:
    """A result that cannot be kept is refused before anything is sent; the longest one can."""
    lease = leases_of(store).acquire(JOB)
    with pytest.raises(error):
        lease.complete(result)
    assert store.get(JOB).state == "open"
    lease.complete(nested(100))
    leases_of(store).reopen(JOB)
    leases_of(store).acquire(JOB).complete("x" * 65_534)


def test_releasing_twice_is_once(store: Store, leases_of: MakeLeases) -> None:
    """A body may release early; the exit then has nothing to do, whoever has the job by then."""
    with leases_of(store).hold(JOB) as lease:
        lease.release()
        lease.release()
        assert store.acquire(JOB, "b:2", 30.0).token.generation == 2


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_release_without_an_answer_is_no_loss(
    far: SqlStore, pg: SqlStore, wire: Any, leases_of: MakeLeases, losses: Any, by_hand: bool
) -> None:
    """A release took effect, its answer was lost, a waiter took the job: the body's work is good."""
    with leases_of(far, on_lost=losses).hold(JOB) as lease:
        wire.at_loss = lambda: pg.acquire(JOB, "b:2", 30.0)
        wire.lose_answers = 1
        if by_hand:
            lease.release()
    assert pg.get(JOB).owner == "b:2"
    assert losses.heard == []


def test_a_release_without_an_answer_past_the_term_is_a_loss(
    far: SqlStore, pg: SqlStore, wire: Any, leases_of: MakeLeases
) -> None:
    """C03: past the term B may have come before the release, so a lost answer excuses nothing."""
    clock = HandClock()
    lease = leases_of(far, _clock=clock).acquire(JOB)
    clock.advance(60)
    take_over(pg)
    wire.lose_answers = 1
    with pytest.raises(LeaseLost, match="generation 2") as lost:
        lease.release()
    assert lost.value.earlier_attempt_unknown


def test_a_second_release_says_nothing_of_the_next_owner(store: Store, leases_of: MakeLeases) -> None:
    """A repetition changes nothing, and is no loss, whoever has the job by then."""
    lease = leases_of(store).acquire(JOB)
    lease.release()
    b = store.acquire(JOB, "b:2", 30.0)
    lease.release()
    store.renew(b.token, 30.0)


def test_a_repeated_completion_is_compared_as_it_is_read(store: Store, leases_of: MakeLeases) -> None:
    """Two keys that are one in JSON: what was recorded is recorded, and its repetition succeeds."""
    lease = leases_of(store).acquire(JOB)
    for _ in range(2):
        lease.complete({1: "a", "1": "b"})
    with pytest.raises(LeaseLost, match="completed"):
        lease.complete({"1": "a"})


def test_a_failing_arm_releases_and_raises(store: Store, leases_of: MakeLeases) -> None:
    """When the third sink fails, the job is free again, and what was armed stays armed."""

    class Broken(MemoryMarks):
        def arm(self, bearer: Any) -> None:
            raise ConnectionRefusedError

    first = MemoryMarks()
    leases = leases_of(store)
    with pytest.raises(ConnectionRefusedError), leases.hold(JOB, arm=[first, MemoryMarks(), Broken()]):
        pytest.fail("the body must not run")
    assert store.get(JOB).owner is None
    assert first.mark(JOB).generation == 1
    with leases.hold(JOB, arm=[first]):
        assert first.mark(JOB).generation == 2


def test_a_stale_owner_does_not_jump_ahead_by_the_repair(store: Store, leases_of: MakeLeases) -> None:
    """C97: A acquires and is paused; B acquires and arms; A arms, is refused, and B keeps its lease."""
    sink = MemoryMarks()

    class Paused(MemoryMarks):
        def arm(self, bearer: Any) -> None:
            sink.arm(take_over(store))

    with pytest.raises(StaleToken) as refused, leases_of(store).hold(JOB, arm=[Paused(), sink]):
        pytest.fail("the body must not run")
    assert refused.value.mark == 2
    record = store.get(JOB)
    assert (record.owner, record.generation) == ("b:2", 2)
    assert sink.mark(JOB) == Mark(2, "b:2")


@pytest.mark.parametrize("mark", [Mark(41, "lost:1"), Mark(1, "lost:1")])
def test_a_store_that_went_back_is_raised_above_the_mark(
    url: str, open_store: Any, leases_of: MakeLeases, ledger: Any, caplog: Any, mark: Mark
) -> None:
    """C40, C43: where a sink is ahead, or knows the number under another owner, the record is raised above.

    Every sink is armed again from the first, under the new token.
    """
    store = open_store(url)
    first = type(ledger)()
    ledger.arm(Token(JOB, mark.generation, mark.owner))
    with leases_of(store).hold(JOB, arm=[first, ledger]) as lease:
        assert lease.generation == mark.generation + 1
        assert [token.generation for token in first.armed] == [1, lease.generation]
        assert first.armed[0].owner != first.armed[1].owner
        assert ledger.mark(JOB) == Mark(lease.generation, lease.token.owner)
        assert store.get(JOB).owner == lease.token.owner
        assert not lease.lost.is_set()
    assert "went back" in caplog.text
    assert store.get(JOB).owner is None


def test_a_sink_that_is_always_ahead_ends_the_repair(store: Store, leases_of: MakeLeases) -> None:
    """The record is raised at most twice; then the refusal is raised, and the job is free."""
    sink = AheadSink(4)
    with pytest.raises(StaleToken), leases_of(store).hold(JOB, arm=[sink]):
        pytest.fail("the body must not run")
    assert sink.shown == [1, 6, 11]
    assert store.get(JOB).owner is None
    assert store.get(JOB).generation == 11


def test_a_jump_too_far_needs_an_operator(store: Store, leases_of: MakeLeases) -> None:
    """A mark more than 10^6 ahead isn't believed: the refusal says what an operator can do."""
    sink = AheadSink(1_000_001)
    with pytest.raises(StaleToken) as refused, leases_of(store).hold(JOB, arm=[sink]):
        pytest.fail("the body must not run")
    assert f"raise_above('{JOB}', 1000002)" in refused.value.__notes__[-1]
    assert sink.shown == [1]
    assert (store.get(JOB).generation, store.get(JOB).owner) == (1, None)


def test_a_mark_that_is_not_told_repairs_nothing(store: Store, leases_of: MakeLeases) -> None:
    """A refusal without a number leaves the generation, and frees the job."""

    class Silent(MemoryMarks):
        def arm(self, bearer: Any) -> None:
            raise StaleToken(bearer.token)

    with pytest.raises(StaleToken), leases_of(store).hold(JOB, arm=[Silent()]):
        pytest.fail("the body must not run")
    assert (store.get(JOB).generation, store.get(JOB).owner) == (1, None)


def test_a_floor_by_the_clock_may_jump(
    lite_url: str, open_store: Any, leases_of: MakeLeases, ledger: Any
) -> None:
    """With floor="clock" a mark far ahead is no sign of damage."""
    store = open_store(lite_url, floor="clock")
    ledger.arm(Token(JOB, 10**12, "lost:1"))
    with leases_of(store).hold(JOB, arm=[ledger]) as lease:
        assert lease.generation == 10**12 + 1


@pytest.mark.parametrize("kind", [StaleToken, GenerationConflict])
def test_a_refusal_in_the_body_makes_room_for_the_next_owner(
    store: Store, leases_of: MakeLeases, kind: type[StaleToken]
) -> None:
    """A sink not named in arm= is ahead: the record is raised above it and free, so the next owner passes."""
    leases = leases_of(store)
    with pytest.raises(kind) as refused, leases.hold(JOB) as lease:
        raise kind(lease.token, 41)
    assert refused.value.mark == 41
    assert lease.lost.is_set()
    assert store.get(JOB).owner is None
    with leases.hold(JOB) as lease:
        assert lease.generation > 41


@pytest.mark.parametrize("wrapped", ["group", "cause", "swallowed"])
def test_a_refusal_makes_room_however_it_leaves_the_body(
    store: Store, leases_of: MakeLeases, wrapped: str
) -> None:
    """In a group, as the cause of a framework's error, or kept in the body: the lease has heard of it."""
    leases = leases_of(store)
    sink = MemoryMarks()
    sink.arm(Token(JOB, 41, "lost:1"))
    with suppress(ExceptionGroup, RuntimeError), leases.hold(JOB) as lease:
        try:
            sink.arm(lease)
        except StaleToken as stale:
            if wrapped == "group":
                raise ExceptionGroup("unhandled errors in a TaskGroup", [stale]) from None
            if wrapped == "cause":
                raise RuntimeError("the framework's") from stale
    assert lease.lost.is_set()
    assert (store.get(JOB).generation, store.get(JOB).owner) == (42, None)
    with leases.hold(JOB) as lease:
        sink.arm(lease)


def test_a_refusal_that_the_body_keeps_does_not_hide_a_takeover(store: Store, leases_of: MakeLeases) -> None:
    """Where the sink was right, hold() says at the end that the job is another's, whose record stays."""
    sink = MemoryMarks()
    with pytest.raises(LeaseLost), leases_of(store).hold(JOB) as lease:
        sink.arm(take_over(store))
        with suppress(StaleToken):
            sink.arm(lease)
    assert (store.get(JOB).generation, store.get(JOB).owner) == (2, "b:2")


def test_a_refusal_in_the_body_leaves_a_later_owners_record(store: Store, leases_of: MakeLeases) -> None:
    """Where it is A who is stale, B's record stays as it is."""
    with pytest.raises(StaleToken), leases_of(store).hold(JOB) as lease:
        a = lease.token
        take_over(store)
        raise StaleToken(a, 2)
    assert (store.get(JOB).generation, store.get(JOB).owner) == (2, "b:2")


def test_a_refusal_of_another_token_is_an_error_like_others(store: Store, leases_of: MakeLeases) -> None:
    """A StaleToken that isn't about this lease raises no record."""
    with pytest.raises(StaleToken), leases_of(store).hold(JOB) as lease:
        raise StaleToken(Token(JOB, 1, "somebody:else"), 41)
    assert not lease.lost.is_set()
    assert (store.get(JOB).generation, store.get(JOB).owner) == (1, None)


def test_a_sink_that_refuses_loses_the_lease(store: Store, leases_of: MakeLeases, losses: Any) -> None:
    """lose() ends the lease: event, callback, next token; a foreign refusal changes nothing."""
    leases = leases_of(store, on_lost=losses)
    lease = leases.acquire(JOB)
    lease.lose(StaleToken(Token(JOB, 1, "somebody:else"), 2))
    refusal = StaleToken(lease.token, 2)
    lease.lose(refusal)
    lease.lose(StaleToken(Token(JOB, 1, refusal.token.owner), 3))
    assert losses.event.wait(10)
    assert losses.heard == [(lease, refusal)]
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost, match="refused"):
        _ = lease.token
    with pytest.raises(LeaseLost):
        lease.renew()


def test_a_forgetful_store_does_not_arm_a_sink_that_remembers(leases_of: MakeLeases, ledger: Any) -> None:
    """C43: a memory store refuses a durable sink before it acquires anything."""
    store = MemoryStore()
    with (
        pytest.raises(NotEnforced, match="SqlStore"),
        leases_of(store).hold(JOB, arm=[MemoryMarks(), ledger]),
    ):
        pytest.fail("the body must not run")
    assert store.get(JOB) is None


def test_a_sink_for_an_event_loop_is_refused(leases_of: MakeLeases) -> None:
    """An async sink would hand back a coroutine that nobody awaits: refused before anything is acquired."""

    class Async:
        durable = False

        async def arm(self, bearer: Any) -> None:
            pytest.fail("nobody may call this")

    store = MemoryStore()
    with pytest.raises(TypeError, match="event loop"), leases_of(store).hold(JOB, arm=[Async()]):
        pytest.fail("the body must not run")
    assert store.get(JOB) is None


def test_a_name_is_no_key(store: Store, leases_of: MakeLeases) -> None:
    """C62: two managers under one owner label are two owners; nor is the holder let in twice."""
    first, second = leases_of(store, owner="worker"), leases_of(store, owner="worker")
    with first.hold(JOB) as lease:
        assert lease.token.owner.startswith("worker:")
        for leases in (first, second):
            with pytest.raises(LeaseHeld) as held:
                leases.acquire(JOB)
            assert held.value.owner == lease.token.owner


def test_waiting_polls_until_the_job_is_free() -> None:
    """wait= looks again at jittered moments, for no longer than it says, and gets what was released."""
    clock = HandClock()
    store = MemoryStore(clock=clock)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)
        if len(pauses) == 5:
            store.reopen(JOB)

    leases = Leases(store, _clock=clock, _pause=pause)
    store.acquire(JOB, "b:2", 600.0)
    with pytest.raises(LeaseHeld):
        leases.acquire(JOB)
    assert pauses == []
    with pytest.raises(LeaseHeld):
        leases.acquire(JOB, wait=timedelta(seconds=1))
    assert sum(pauses) == pytest.approx(1.0)
    pauses[:] = []
    assert leases.acquire(JOB, wait=60).generation == 2
    assert len(pauses) == 5
    assert len(set(pauses)) == 5
    assert all(0.5 <= each <= 1.0 for each in pauses)


def test_one_whose_question_hangs_keeps_nobody_from_asking_for_ever() -> None:
    """A connection that says nothing, a loop that has gone: after a while the next one asks."""
    clock, asked, go_on = HandClock(), threading.Event(), threading.Event()

    class Hanging(MemoryStore):
        def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
            """The first call isn't answered."""
            if not asked.is_set():
                asked.set()
                assert go_on.wait(30)
                raise ConnectionError("gone")
            return super().acquire(job_id, owner, ttl)

    leases = Leases(Hanging(), _clock=clock, _pause=clock.advance)

    def ask_in_vain() -> None:
        with pytest.raises(ConnectionError):
            leases.acquire(JOB)

    first = threading.Thread(target=ask_in_vain)
    first.start()
    assert asked.wait(30)
    assert leases.acquire(JOB, wait=float("inf")).generation == 1
    go_on.set()
    first.join()


def test_close_ends_who_waits_for_a_job() -> None:
    """It would acquire the job after the end of all else, and hold it with nobody to release it."""
    store = MemoryStore()
    leases = Leases(store, _pause=lambda seconds: leases.close())
    store.acquire(JOB, "b:2", 600.0)
    with pytest.raises(RuntimeError, match="closed"), leases.hold(JOB, wait=600):
        pytest.fail("the body must not run")


def test_close_overtakes_an_answer() -> None:
    """Asked before the close, granted after it: given back."""

    class Slow(MemoryStore):
        def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
            """Answer after the manager was closed."""
            grant = super().acquire(job_id, owner, ttl)
            leases.close()
            return grant

    leases = Leases(Slow())
    with pytest.raises(RuntimeError, match="closed"):
        leases.acquire(JOB)
    assert leases.get(JOB).owner is None


@pytest.mark.parametrize("wait", [-1, float("nan"), True, "5"])
def test_a_wait_is_a_length_of_time(leases_of: MakeLeases, wait: Any) -> None:
    """A wait that is none is refused before anything is asked."""
    with pytest.raises((ValueError, TypeError), match="wait"):
        leases_of(MemoryStore()).acquire(JOB, wait=wait)


@pytest.mark.parametrize("timeout", [-1, None, "5", float("nan")])
def test_a_timeout_is_a_length_of_time(timeout: Any) -> None:
    """One that is none is refused, and the leases stay; one without end is shortened."""
    leases = Leases(MemoryStore())
    lease = leases.acquire(JOB)
    with pytest.raises((ValueError, TypeError), match="timeout"):
        leases.close(timeout)
    assert lease.token.generation == 1
    leases.close(float("inf"))
    assert leases.get(JOB).owner is None


@pytest.mark.parametrize("prefix", [5, None, b"x", "\0", "\ud800"])
def test_a_prefix_is_what_job_ids_can_start_with(store: Store, leases_of: MakeLeases, prefix: Any) -> None:
    """Whatever a store makes of other things, they are refused before."""
    with pytest.raises((ValueError, TypeError), match="prefix"):
        leases_of(store).list(prefix)


class Anything:
    """It has whatever it is asked for, as a proxy has, and is no store for that."""

    def __getattr__(self, name: str) -> object:
        return name


def test_what_a_manager_is_made_of_is_checked(lite_url: str) -> None:
    """A store of the other kind, something else, and an on_lost that can't be called are named at once."""
    with pytest.raises(TypeError, match=r"sinkfence\.aio"):
        Leases(sql_aio.SqlStore(lite_url))
    with pytest.raises(TypeError, match=r"sinkfence\.stores\.sql\.aio"):
        aio.Leases(SqlStore(lite_url))
    engine = sa.create_engine(lite_url)
    others = lite_url, engine, SqlStore, threading.Lock(), Anything(), None
    for make, mistaken in product((Leases, aio.Leases), others):
        with pytest.raises(TypeError, match=r"no store: pass SqlStore"):
            make(mistaken)
    with pytest.raises(TypeError, match="on_lost"):
        Leases(MemoryStore(), on_lost=3)


@pytest.mark.parametrize("mistaken", [MemoryMarks(), None, iter([MemoryMarks()])])
def test_one_sink_is_no_list_of_sinks(mistaken: Any) -> None:
    """Forgotten brackets are told as such, and so is what gives its sinks once, before anything is asked."""
    leases = Leases(MemoryStore())
    with pytest.raises(TypeError, match=rf"list of sinks, not one {type(mistaken).__name__}: arm=\[\.\.\.\]"):
        with leases.hold(JOB, arm=mistaken):
            pytest.fail("the body must not run")
    assert leases.get(JOB) is None


@pytest.mark.parametrize("make", [Leases, aio.Leases])
def test_a_hold_is_no_decorator(make: Any, lite_url: str) -> None:
    """A coroutine function or a generator runs when the job has been given back: refused, for all alike."""
    leases = make(sql_aio.SqlStore(lite_url) if make is aio.Leases else SqlStore(lite_url))
    with pytest.raises(TypeError, match="inside of the function"):

        @leases.hold(JOB)
        def work() -> None:
            pytest.fail("the body must not run")


def test_what_belongs_to_a_process_is_not_pickled(lite_url: str) -> None:
    """A worker that is sent a lease, a manager or a store is told what to send in its place."""
    leases = Leases(MemoryStore())
    asynchronous = sql_aio.SqlStore(lite_url)
    for own, instead in (
        (leases.acquire(JOB), "pass lease.token"),
        (leases, "make them in each"),
        (aio.Leases(asynchronous), "make them in each"),
        (asynchronous, "make one in each"),
        (SqlStore(lite_url), "make one in each"),
    ):
        with pytest.raises(TypeError, match=instead):
            pickle.dumps(own)


def test_a_hold_is_entered_once() -> None:
    """A second turn under the same object would hold nothing; the first one goes on."""
    leases = Leases(MemoryStore())
    with leases.hold(JOB) as lease:
        pass
    held = leases.hold(JOB)
    with held as lease:
        with pytest.raises(RuntimeError, match="entered once"), held:
            pytest.fail("the body must not run")
        lease.renew()
    with pytest.raises(RuntimeError, match="entered once"):
        held.__enter__()


class Untouchable(MemoryStore):
    """A store that must not be asked anything."""

    def __getattribute__(self, name: str) -> object:
        pytest.fail(f"{name} was asked for")


@pytest.mark.parametrize(("heartbeat", "ttl"), [(10, 10), (11, 10), (5, 10), (timedelta(seconds=6), 10)])
def test_a_heartbeat_too_slow_for_its_ttl_is_refused(heartbeat: Any, ttl: float) -> None:
    """C24: at construction, and for the ttl of a single hold, before any I/O."""
    with pytest.raises(ValueError, match="heartbeat"):
        Leases(Untouchable(), ttl=ttl, heartbeat=heartbeat)


def test_a_fine_heartbeat_is_fine() -> None:
    """C24: less than half of the ttl; a shorter ttl of one hold is measured by it, too."""
    leases = Leases(Untouchable(), ttl=10, heartbeat=3.3)
    with pytest.raises(ValueError, match="heartbeat"), leases.hold(JOB, ttl=5):
        pytest.fail("the body must not run")


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12, timedelta(0), True, 0.0004, "30"])
def test_a_ttl_is_checked_before_any_io(ttl: Any) -> None:
    """C80: at construction and at each call."""
    with pytest.raises((ValueError, TypeError), match="ttl"):
        Leases(Untouchable(), ttl=ttl)
    with pytest.raises((ValueError, TypeError), match="ttl"), Leases(MemoryStore()).hold(JOB, ttl=ttl):
        pytest.fail("the body must not run")


class SlowStore(MemoryStore):
    """A store whose answers take their time by this side's clock."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock
        self.takes = 0.0

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """Take as long."""
        grant = super().acquire(job_id, owner, ttl)
        self.clock.advance(self.takes)
        return grant

    def renew(self, token: Token, ttl: float, conn: object = None) -> Any:
        """Take as long."""
        until = super().renew(token, ttl)
        self.clock.advance(self.takes)
        return until


def test_a_lease_that_is_over_on_arrival_is_not_handed_out() -> None:
    """The term counts from before the sending; the lease is released."""
    clock = HandClock()
    store = SlowStore(clock)
    leases = Leases(store, ttl=10, _clock=clock)
    store.takes = 4.0
    assert leases.acquire("other").remaining() == pytest.approx(10 - 0.2 - 4)
    store.takes = 9.9
    with pytest.raises(LeaseLost):
        leases.acquire(JOB)
    assert store.get(JOB).owner is None


def test_a_renewal_that_is_over_on_arrival_is_given_back() -> None:
    """A success past the term never revives the lease: it is released, and the lease is lost."""
    clock = HandClock()
    store = SlowStore(clock)
    lease = Leases(store, ttl=10, _clock=clock).acquire(JOB)
    store.takes = 9.9
    with pytest.raises(LeaseLost):
        lease.renew()
    assert lease.lost.is_set()
    assert store.get(JOB).owner is None


def test_a_term_that_ran_out_unnoticed_can_be_renewed() -> None:
    """The store knows whether anybody else had the job; once this side was told, it is over for good."""
    clock = HandClock()
    store = MemoryStore(clock=clock)
    lease = Leases(store, ttl=10, _clock=clock).acquire(JOB)
    clock.advance(60)
    assert lease.remaining() == 0.0
    lease.renew()
    assert lease.remaining() == pytest.approx(9.8)
    clock.advance(60)
    with pytest.raises(LeaseLost):
        _ = lease.token
    with pytest.raises(LeaseLost):
        lease.renew()
    lease.complete()
    assert store.get(JOB).state == "done"


def test_closing_releases_everything(store: Store) -> None:
    """close() gives all leases of the process back, ends the threads, and nothing is acquired afterwards."""
    before = threading.enumerate()  # other tests' pools among them
    leases = Leases(store)
    with leases:
        kept = leases.acquire("one")
        held = leases.hold("two")
        held.__enter__()
    assert store.get("one").owner is None
    assert store.get("two").owner is None
    assert kept.remaining() == 0.0
    assert [each for each in threading.enumerate() if each not in before] == []
    with pytest.raises(RuntimeError, match="closed"):
        leases.acquire("one")
    assert held.__exit__(None, None, None) is False


STARTS = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
"""What Python starts a thread by."""


def test_an_exit_handler_may_close(monkeypatch: Any) -> None:
    """Python 3.12 starts no thread there any more: what is held is released on the one that is there."""
    store = MemoryStore()
    leases = Leases(store)
    kept = leases.acquire(JOB)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading, STARTS, refuse)
    leases.close()
    assert store.get(JOB).owner is None
    assert kept.remaining() == 0.0


class StuckStore(MemoryStore):
    """A store that doesn't answer to releases."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def release(self, token: Token, conn: object = None) -> None:
        """Hang, or fail."""
        if token.job_id == "broken":
            raise ConnectionResetError
        self.go.wait()


@contextmanager
def unstuck(store: StuckStore) -> Iterator[None]:
    """Let the store answer in the end."""
    try:
        yield
    finally:
        store.go.set()


def test_closing_is_bounded_and_collects_errors() -> None:
    """A store that doesn't answer holds up close() for its timeout and no longer; every error is told."""
    store = StuckStore()
    leases = Leases(store)
    kept = [leases.acquire("broken")]
    with pytest.raises(ExceptionGroup) as group:
        leases.close()
    assert [type(error) for error in group.value.exceptions] == [ConnectionResetError]
    leases = Leases(store)
    kept = [leases.acquire(f"stuck {i}") for i in range(2)]
    with unstuck(store), pytest.raises(ExceptionGroup) as group:
        leases.close(timeout=0.05)
    assert [type(error) for error in group.value.exceptions] == [TimeoutError]
    # One was reached and hangs; the other one was not, and runs out all the same.
    assert [lease.remaining() for lease in kept] == [0.0, 0.0]


def test_a_store_out_of_reach_at_the_exit_costs_no_finished_work(caplog: Any) -> None:
    """Within its term the lease was ours to the body's end: a failing release is logged and runs out."""

    class Gone(MemoryStore):
        def release(self, token: Token, conn: object = None) -> None:
            raise ConnectionResetError("gone")

    with Leases(Gone()).hold(JOB):
        pass
    assert "gone" in caplog.text


def test_a_store_that_hangs_keeps_nobody_at_the_exit(
    far: SqlStore, pg: SqlStore, wire: Any, leases_of: MakeLeases, monkeypatch: Any, caplog: Any
) -> None:
    """The end of a body is bounded: the lease runs out, and release() says that it had no answer."""
    monkeypatch.setattr("sinkfence.leases.waits.LEAVING", 0.05)
    leases = leases_of(far)
    other = leases.acquire("other")
    with leases.hold(JOB):
        wire.swallow = True
    assert "did not answer: repeat" in caplog.text
    with pytest.raises(OutcomeUnknown, match="repeat it"):
        other.release()
    wire.close()
    assert [pg.get(job).generation for job in (JOB, "other")] == [1, 1]


class Late(MemoryStore):
    """A store that answers to a repair when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.released = threading.Event(), threading.Event()

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """Wait, and grant."""
        assert self.go.wait(30)
        return super().reacquire_above(token, n, owner, ttl)

    def release(self, token: Token, conn: object = None) -> None:
        """Release, and tell of a repaired one."""
        super().release(token)
        if token.generation > 2:
            self.released.set()


@pytest.mark.parametrize("where", ["arming", "body"])
def test_a_repair_that_comes_too_late_is_given_back(monkeypatch: Any, where: str) -> None:
    """Nobody waits for a store that hangs while it is raised above a mark, and nobody has the job then."""
    monkeypatch.setattr("sinkfence.leases.waits.LEAVING", 0.05)
    store = Late()
    # The release that follows the repair changes nothing: it must not make room for it before.
    monkeypatch.setattr("sinkfence.leases.holder.Holder._release_quietly", lambda *_: iter(()))
    kind = OutcomeUnknown if where == "arming" else StaleToken
    with (
        pytest.raises(kind),
        Leases(store).hold(JOB, arm=[AheadSink(4)] if where == "arming" else []) as lease,
    ):
        raise StaleToken(lease.token, 41)
    store.go.set()
    assert store.released.wait(30)
    assert store.get(JOB).owner is None
    assert store.get(JOB).generation == (6 if where == "arming" else 42)


class Interrupting(Late):
    """A store that has a signal sent to the main thread while that waits, and answers when it is told to."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def _interrupt(self, call: str) -> None:
        if call == self.call:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            assert self.go.wait(30)

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """Interrupt, and grant."""
        self._interrupt("reacquire_above")
        return MemoryStore.reacquire_above(self, token, n, owner, ttl)

    def release(self, token: Token, conn: object = None) -> None:
        """Interrupt, and release."""
        self._interrupt("release")
        super().release(token)


def test_a_first_sending_that_arrives_late_is_trusted_for_what_is_left(
    open_store: Any, lite_url: str
) -> None:
    """Refused, and granted by an earlier sending between two looks: the term ends before that lease does."""
    store, owners, clock = open_store(lite_url), [], HandClock()
    asked = store.acquire

    def acquire(job_id: str, owner: str, ttl: float) -> Grant:
        owners.append(owner)
        return asked(job_id, owner, ttl)

    def pause(_: float) -> None:
        store.reopen(JOB)
        asked(JOB, owners[0], 500.0)  # as if it had arrived at once, and 2500 of its 3000 seconds were over
        clock.advance(2500.0)

    store.acquire(JOB, "b:2", 3000.0)
    store.acquire = acquire
    lease = Leases(store, ttl=3000.0, _clock=clock, _pause=pause).acquire(JOB, wait=6000.0)
    assert lease.generation == 2
    assert 0.0 < lease.remaining() < 500.0


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.fixture(params=[Soft, TimeoutError, KeyboardInterrupt])
def interrupted_by(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    """What the handler of SIGUSR1 raises."""

    def handler(*_: object) -> None:
        raise request.param("now")

    before = signal.signal(signal.SIGUSR1, handler)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def test_an_interruption_of_leaving_is_raised(interrupted_by: type[BaseException]) -> None:
    """What a handler raises while the end of a body waits for the store is no error of the store's."""
    store = Interrupting("release")
    with pytest.raises(interrupted_by, match="now"), Leases(store).hold(JOB):
        pass
    store.go.set()


@pytest.mark.parametrize("fails", [False, True])
def test_leaving_is_interrupted_at_any_call(interrupted_by: type[BaseException], fails: bool) -> None:
    """Whichever it is: the exception is raised, the job is renewed no more, the heartbeat works."""
    store = MemoryStore()
    for call in count(1):
        leases, seen, raised = Leases(store), 0, False

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal seen
            code = frame.f_code
            # Where a trace can raise what no signal can: in a generator it gets round each `except` and
            # `finally`, and at lines it comes between the end of a `with` and its __exit__.
            if "/sinkfence/" not in code.co_filename or code.co_flags & inspect.CO_GENERATOR:
                return None
            frame.f_trace_lines = False
            seen += event in {"call", "return"}
            if seen == call:  # noqa: B023 - called in this turn
                signal.raise_signal(signal.SIGUSR1)
            return trace

        try:
            with suppress(ZeroDivisionError), leases.hold(f"{JOB}-{call}"):
                sys.settrace(trace)
                _ = 1 / (not fails)
        except interrupted_by:
            raised = True
        finally:
            sys.settrace(None)
        heartbeat = leases._holders.open()._heartbeat
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert other.submit(heartbeat._lock.acquire, timeout=30).result(), call
            other.submit(heartbeat._lock.release).result()
        assert not [tenure for tenure in heartbeat._beating if tenure.end is None], call
        # Its threads end within LONGEST_WAIT, as the interruption may have come before they were woken.
        heartbeat.look()
        with heartbeat._changed:
            heartbeat._changed.notify_all()
        heartbeat.stop(30)
        if seen < call:
            break
        assert raised, call
    assert call > 50


@pytest.mark.parametrize("where", ["arming", "body"])
def test_a_repair_that_was_interrupted_is_given_back(
    interrupted_by: type[BaseException], where: str, monkeypatch: Any
) -> None:
    """Nobody has the job then, though the store granted it, and the interruption is raised."""
    # The release that follows the repair changes nothing: it must not make room for it before.
    monkeypatch.setattr("sinkfence.leases.holder.Holder._release_quietly", lambda *_: iter(()))
    store = Interrupting("reacquire_above")
    with (
        pytest.raises(interrupted_by, match="now"),
        Leases(store).hold(JOB, arm=[AheadSink(4)] if where == "arming" else []) as lease,
    ):
        raise StaleToken(lease.token, 41)
    store.go.set()
    assert store.released.wait(30)
    assert store.get(JOB).owner is None


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("where", ["entry", "exit"])
def test_the_start_of_a_thread_may_be_interrupted(where: str, *, runs: bool, monkeypatch: Any) -> None:
    """The handler's error is raised and no KeyError of Python's, and the job is given back.

    Python strikes off what it takes for not started. `runs`: the thread has gone on before that.
    """
    store = MemoryStore()
    leases = Leases(store, ttl=60)
    begin = getattr(threading, STARTS)

    def interrupted(bootstrap: Any, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(threading, STARTS, begin)
        thread = bootstrap.__self__
        if runs:
            begin(bootstrap, *args, **options)
            while thread in threading._limbo:
                pass
        raise Soft("now")

    def interrupt() -> None:
        monkeypatch.setattr(threading, STARTS, interrupted)

    def turn() -> None:
        if where == "entry":
            interrupt()
        with leases.hold(JOB):
            if where == "exit":
                interrupt()

    with pytest.raises(Soft, match="now"):
        turn()
    until = time.monotonic() + 30
    while store.get(JOB).owner:
        assert time.monotonic() < until
    leases.close()


class Hanging(MemoryStore):
    """A store that answers to no repair and no release until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """Hang."""
        self.go.wait()
        return None

    def release(self, token: Token, conn: object = None) -> None:
        """Hang."""
        self.go.wait()


@pytest.fixture
def waiting(monkeypatch: Any) -> tuple[HandClock, list[float]]:
    """A clock that waits for the store alone move, and for how long each of them was to be."""
    clock = HandClock()
    waited: list[float] = []

    def wait(futures: Any, timeout: float) -> Any:
        waited.append(timeout)
        clock.advance(timeout)
        return concurrent.futures.wait(futures, 0)

    monkeypatch.setattr("sinkfence.leases.asking.wait", wait)
    return clock, waited


def test_all_requests_of_leaving_share_its_time(waiting: tuple[HandClock, list[float]]) -> None:
    """A body that was refused is not kept for the repair and then for the release as long again."""
    store, (clock, waited) = Hanging(), waiting
    with pytest.raises(StaleToken), Leases(store, ttl=60, _clock=clock).hold(JOB) as lease:
        raise StaleToken(lease.token, 41)
    store.go.set()
    assert waited == [waits.LEAVING - waits.RELEASE, waits.RELEASE]


@pytest.mark.parametrize(("over", "seconds"), [(False, waits.LEAVING), (True, waits.LEAVING_LOST)])
def test_what_is_over_is_not_waited_for_as_what_is_ours(
    waiting: tuple[HandClock, list[float]], over: bool, seconds: float
) -> None:
    """The release has all the time that is written, and less where the lease is known to be over."""
    store, (clock, waited) = Hanging(), waiting
    with suppress(OutcomeUnknown), Leases(store, ttl=60, _clock=clock).hold(JOB):
        clock.advance(61 if over else 0)
    store.go.set()
    assert waited == [seconds]


class InTheirs(Hanging):
    """A store that does complete in a transaction of the caller's."""

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """Leave it to that transaction."""


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_that_settled_the_lease_is_not_waited_for(
    waiting: tuple[HandClock, list[float]], caplog: Any, fails: bool
) -> None:
    """One around the hold() locks the row until later; after an error it has been rolled back."""
    store, (clock, waited) = InTheirs(), waiting
    with suppress(ZeroDivisionError), Leases(store, ttl=60, _clock=clock).hold(JOB) as lease:
        lease.complete(conn=object())
        _ = 1 / (not fails)
    store.go.set()
    assert waited == [waits.LEAVING if fails else waits.LEAVING_THEIRS]
    assert [record.levelname for record in caplog.records if "leaving" in record.message] == (
        ["WARNING"] if fails else []
    )


@pytest.mark.parametrize("where", ["around", "inside"])
def test_a_transaction_around_a_hold_may_complete(
    url: str, open_store: Any, leases_of: MakeLeases, where: str
) -> None:
    """The commit decides, also after the hold() was left; after a rollback inside of it the job is free."""
    leases = leases_of(open_store(url), ttl=600.0)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        with leases.hold(JOB) as lease:
            lease.complete(conn=connection)
            if where == "inside":
                connection.rollback()
        connection.commit()
    engine.dispose()
    if where == "around":
        assert leases.get(JOB).state == "done"
    else:
        assert leases.acquire(JOB, wait=60).generation == 2


def test_two_threads_of_one_manager_never_share_a_lease(pg: SqlStore, leases_of: MakeLeases) -> None:
    """C98: each acquire call has an owner value of its own, so a number issued twice is told apart."""
    leases = leases_of(pg, owner="worker")
    first = leases.acquire(JOB)
    with pg._here().work.connect() as connection:
        connection.exec_driver_sql("DROP TABLE sinkfence_lease")
        connection.exec_driver_sql("DELETE FROM sinkfence_schema")
    pg.create_schema()
    second = leases.acquire(JOB)
    assert first.generation == second.generation == 1
    assert first.token.owner != second.token.owner
    with pytest.raises(LeaseLost, match="another owner"):
        first.renew()
    sink = MemoryMarks()
    sink.arm(second)
    with pytest.raises(LeaseLost):
        sink.arm(first)
    second.renew()
