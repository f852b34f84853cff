"""Scenes at a manager whose store, clock and heartbeat are moved by hand: no server, no waiting."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from mutants.scenes import Ground, Scene
from mutants.scenes.hands import TTL, Hand, InLoop, Marks, by_hand
from sinkfence import Leases, aio
from sinkfence.errors import LeaseLost, StaleToken
from sinkfence.grants import Renewals
from sinkfence.stores.memory import MemoryStore
from sinkfence.tokens import MAX_GENERATION, Token


@by_hand(heartbeat=4.9)
def one_error(scene: Hand) -> None:
    """The first renewal fails; the store is there again at once."""

    def fail(answer: Renewals) -> Renewals:
        raise ConnectionResetError

    scene.store.bends = [fail]
    with scene.kept():
        scene.passes(3 * TTL)


@by_hand(heartbeat=3.0)
def one_locked_row(scene: Hand) -> None:
    """The first renewal finds the row locked."""
    scene.store.bends = [lambda answer: Renewals({}, frozenset(), {})]
    with scene.kept():
        scene.passes(3 * TTL)


@by_hand(heartbeat=3.0)
def renewals_overtake(scene: Hand) -> None:
    """While the heartbeat's answer is under way the body renews, and is answered sooner."""
    with scene.kept() as lease:

        def overtaken(answer: Renewals) -> Renewals:
            scene.clock.advance(2.0)
            lease.renew()
            return answer

        scene.store.bends = [overtaken]
        scene.clock.advance(3.0)
        scene.beat()
        if lease.remaining() < 0.97 * TTL:
            scene.break_("L4", f"renewed just now, and {lease.remaining()} s are left")


@by_hand(heartbeat=3.0)
def seen_while_completing(scene: Hand) -> None:
    """The heartbeat reads the row between a completion and its answer."""
    with scene.kept() as lease:
        scene.clock.advance(3.0)
        scene.store.completed = scene.beat
        lease.complete("done")


@by_hand(heartbeat=3.0)
def slow_arming(scene: Hand) -> None:
    """A sink takes longer than the ttl."""
    with scene.kept(arm=[Marks(lambda: scene.passes(2 * TTL))]) as lease:
        _ = lease.token


@by_hand(heartbeat=3.0)
def overtaken(scene: Hand) -> None:
    """Somebody else has the job; the body completes it all the same, and ends."""
    ended = False
    with scene.learns(LeaseLost), scene.leases.hold(scene.job) as lease:
        scene.store.reopen(scene.job)
        scene.store.acquire(scene.job, "B:2", 60.0)
        scene.passes(4.0)
        if len(scene.told) != 1:
            scene.break_("L3", f"told {len(scene.told)} times by the next beat")
        with suppress(LeaseLost):
            lease.complete("too late")
        scene.passes(1.0)
        ended = True
    if not ended or len(scene.told) != 1:
        scene.break_("L3", f"told {scene.told} at the end")
    with scene.learns(LeaseLost), scene.leases.hold("another") as lease:
        scene.store.reopen("another")
        scene.store.acquire("another", "B:2", 60.0)


@by_hand(heartbeat=3.0)
def cut_off(scene: Hand) -> None:
    """The store cannot be reached any more."""

    def fail(answer: Renewals) -> Renewals:
        raise ConnectionResetError

    with suppress(LeaseLost), scene.leases.hold(scene.job) as lease:
        scene.store.bends = [fail] * 1000
        scene.passes(TTL)
        if not lease.lost.is_set() or len(scene.told) != 1:
            scene.break_("L3", "its term is over, and nobody was told")


@by_hand(heartbeat=3.0)
def callback_exits(scene: Hand) -> None:
    """Two leases run out, and the first callback calls sys.exit()."""
    scene.exits = True
    held = [scene.leases.hold(job) for job in ("one", "two")]
    for each in held:
        each.__enter__()
    scene.store.bends = [lambda answer: Renewals({}, frozenset(), {})] * 1000
    try:
        scene.passes(TTL)
    except SystemExit:
        scene.break_("L3", "the heartbeat's thread was ended")
    if len(scene.told) != 2:
        scene.break_("L3", f"told of {len(scene.told)} of two losses")


@by_hand(heartbeat=3.0)
def failing_filter(scene: Hand) -> None:
    """The program's log filter raises."""

    def knows_requests_only(record: logging.LogRecord) -> bool:
        raise AttributeError("request")

    logger = logging.getLogger("sinkfence")
    logger.addFilter(knows_requests_only)
    try:
        with suppress(Exception), scene.leases.hold(scene.job):
            scene.store.reopen(scene.job)
            scene.store.acquire(scene.job, "B:2", 60.0)
            with suppress(AttributeError):
                scene.passes(4.0)
            if len(scene.told) != 1:
                scene.break_("L3", "nobody was told of the loss")
    finally:
        logger.removeFilter(knows_requests_only)


@by_hand(heartbeat=3.0)
def slow_answers(scene: Hand) -> None:
    """An acquisition is answered when half of its ttl is over, and another when all of it is."""
    scene.store.takes = TTL / 2
    lease = scene.leases.acquire(scene.job)
    record = scene.store.get(scene.job)
    assert record is not None
    if lease.remaining() > record.remaining:
        scene.break_("L3", f"this side believes in {lease.remaining()} s, the store in {record.remaining}")
    scene.store.takes = TTL
    with scene.learns(LeaseLost):
        scene.leases.acquire("another")


@by_hand(heartbeat=3.0)
def forked(scene: Hand) -> None:
    """A child uses what it has inherited."""
    lease = scene.leases.acquire(scene.job)
    with patch("os.getpid", return_value=os.getpid() + 1):
        for use in (lambda: lease.token, lease.renew, lease.complete):
            with scene.learns(LeaseLost):
                use()


@by_hand(heartbeat=3.0)
def closed(scene: Hand) -> None:
    """The manager is closed while a body is at work."""
    held = scene.leases.hold(scene.job)
    lease = held.__enter__()
    with patch.object(scene.heartbeat, "stop"):
        scene.leases.close()
    with scene.learns(LeaseLost):
        _ = lease.token
    scene.free(scene.job)
    if scene.heartbeat._beating:
        scene.break_("L5", "the heartbeat goes on with what has ended")


@by_hand(heartbeat=3.0)
def late_renewal(scene: Hand) -> None:
    """A renewal is answered when its worker has been told of the loss."""

    def late(answer: Renewals) -> Renewals:
        scene.clock.advance(TTL - 3.0)
        scene.heartbeat.look()
        scene.heartbeat.tell()
        return answer

    held = scene.leases.hold(scene.job)
    held.__enter__()
    scene.store.bends = [late]
    scene.clock.advance(3.0)
    scene.beat()
    scene.free(scene.job)


@by_hand(heartbeat=3.0)
def mistaken_mark(scene: Hand) -> None:
    """A sink says that it has seen the last number but one."""
    with suppress(StaleToken), scene.leases.hold(scene.job, arm=[Marks(ahead=[MAX_GENERATION - 1])]):
        pass
    with scene.goes_on():
        scene.leases.acquire(scene.job).release()


@by_hand(heartbeat=3.0)
def store_went_back(scene: Hand) -> None:
    """A sink that is not named in arm= is far ahead."""
    marks = Marks()
    marks.arm(Token(scene.job, 41, "lost:1"))
    with suppress(StaleToken), scene.leases.hold(scene.job) as lease:
        marks.arm(lease)
    with scene.goes_on(), scene.leases.hold(scene.job) as lease:
        marks.arm(lease)


@by_hand(heartbeat=3.0)
def failing_meter(scene: Hand) -> None:
    """OpenTelemetry's provider raises at each measurement."""

    class Meter:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("no collector")

    with patch("sinkfence.observe._telemetry", return_value=Meter()), scene.goes_on():
        scene.leases.acquire(scene.job).release()


@contextmanager
def unnoticed() -> Generator[None]:
    """Inside, nothing is said of steps that were left in the middle, as a mutant leaves them."""
    with patch("sys.unraisablehook", lambda _: None):
        yield
        gc.collect()


@by_hand(heartbeat=3.0)
def failing_arm(scene: Hand) -> None:
    """A sink is down."""

    def down() -> None:
        raise ConnectionRefusedError

    with unnoticed(), suppress(ConnectionRefusedError), scene.leases.hold(scene.job, arm=[Marks(down)]):
        pass
    scene.free(scene.job)


@by_hand(heartbeat=3.0)
def close_overtakes(scene: Hand) -> None:
    """The manager is closed between the store's grant and its answer."""
    scene.store.acquired = scene.leases.close
    with suppress(RuntimeError):
        scene.leases.acquire(scene.job)
    scene.free(scene.job)


@contextmanager
def impatient() -> Generator[None]:
    """Inside, nobody waits long."""
    with patch("sinkfence.leases.waits.LEAVING", 0.05):
        yield


def store_hangs(ground: Ground) -> Scene:
    """The store does not answer the release at the end."""
    scene, go_on = Scene(), threading.Event()

    class Hangs(MemoryStore):
        def release(self, token: Token, conn: object = None) -> None:
            if not go_on.wait(1):
                scene.break_("L5", "the exit waited until the store answered")

    with impatient(), Leases(Hangs()).hold(scene.job):
        pass
    go_on.set()
    return scene


def one_batch_hangs(ground: Ground) -> Scene:
    """The first batch of renewals gets no answer; the next one would."""
    scene, go_on, answered = Scene(), threading.Event(), threading.Event()

    class Hangs(MemoryStore):
        hung = False

        def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
            if self.hung:
                answered.set()
            else:
                self.hung = True
                go_on.wait(30)
            return super().renew_many(wanted)

    with (
        patch("sinkfence.leases.waits.BATCH", 0.0),
        patch("sinkfence.leases.waits.BATCH_AT_LEAST", 0.05),
        Leases(Hangs(), ttl=60, heartbeat=0.05).hold(scene.job),
    ):
        if not answered.wait(10):
            scene.break_("L4", "no lease was renewed any more")
        go_on.set()
    return scene


def store_hangs_in_a_loop(ground: Ground) -> Scene:
    """The store does not answer the release at the end."""
    scene = Scene()

    class Hangs(InLoop):
        async def release(self, token: Token, conn: object = None) -> None:
            await asyncio.sleep(1)
            scene.break_("L5", "the exit waited until the store answered")

    async def main() -> None:
        async with aio.Leases(Hangs()).hold(scene.job):
            pass

    with impatient():
        asyncio.run(main())
    return scene


def cancelled(ground: Ground) -> Scene:
    """A task is cancelled when the store has granted it the job, and before the answer is here."""
    scene = Scene()
    store = InLoop()

    async def main() -> None:
        granted, answer = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            granted.set()
            await answer.wait()

        store.acquired = slow
        acquiring = asyncio.create_task(aio.Leases(store).acquire(scene.job))
        await granted.wait()
        acquiring.cancel()
        await asyncio.sleep(0)
        answer.set()
        with suppress(asyncio.CancelledError):
            await acquiring

    asyncio.run(main())
    if store.sync.get(scene.job).owner is not None:
        scene.break_("L5", "the job is held by a task that has gone")
    return scene


def failing_arm_in_a_loop(ground: Ground) -> Scene:
    """A sink is down."""
    scene, store = Scene(), InLoop()

    class Down(Marks):
        async def arm(self, bearer: Any) -> None:
            raise ConnectionRefusedError

    async def main() -> None:
        async with aio.Leases(store).hold(scene.job, arm=[Down()]):
            pass

    with unnoticed(), suppress(ConnectionRefusedError):
        asyncio.run(main())
    if store.sync.get(scene.job).owner is not None:
        scene.break_("L5", "the job is held by nobody")
    return scene


def refused_in_a_loop(ground: Ground) -> Scene:
    """A sink refuses A inside the asynchronous hold()."""
    scene, marks = Scene(), Marks()

    async def main() -> None:
        async with aio.Leases(InLoop()).hold(scene.job) as lease:
            marks.arm(Token(scene.job, lease.generation + 1, "B:1"))
            marks.arm(lease)
        scene.break_("L3", "the refusal was swallowed, and the program goes on as if it had been done")

    with suppress(StaleToken):
        asyncio.run(main())
    return scene


class Elsewhere(Marks):
    """A sink that answers by a future, which comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.future: Future[None] = Future()

    def arm(self, bearer: Any) -> Any:
        threading.Timer(0.02, self.future.set_result, [None]).start()
        return self.future


def armed_elsewhere(ground: Ground) -> Scene:
    """A sink under hold() answers by a future."""
    scene, sink = Scene(), Elsewhere()
    with suppress(TypeError), Leases(MemoryStore()).hold(scene.job, arm=[sink]):
        if not sink.future.done():
            scene.break_("D9", "the body runs, and the sink is not armed")
    sink.future.result(30)
    return scene


def armed_elsewhere_in_a_loop(ground: Ground) -> Scene:
    """A sink under the asynchronous hold() answers by a future."""
    scene, sink = Scene(), Elsewhere()

    async def main() -> None:
        async with aio.Leases(InLoop()).hold(scene.job, arm=[sink]):
            if not sink.future.done():
                scene.break_("D9", "the body runs, and the sink is not armed")

    asyncio.run(main())
    sink.future.result(30)
    return scene
