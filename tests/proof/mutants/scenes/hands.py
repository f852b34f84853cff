"""A manager of leases that a scene moves by hand: its store, its clock, and each beat of its heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from mutants.scenes import Ground, Scene
from sinkfence import Leases
from sinkfence.errors import LeaseLost
from sinkfence.grants import Grant, Renewals
from sinkfence.leases.lease import Lease
from sinkfence.marks import MemoryMarks
from sinkfence.stores.memory import MemoryStore
from sinkfence.testing import HandClock
from sinkfence.tokens import Token

TTL = 10.0


class Bent(MemoryStore):
    """A store into whose answers a scene may step."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock=clock)
        self.clock, self.takes = clock, 0.0
        self.bends: list[Callable[[Renewals], Renewals]] = []
        self.asking: Callable[[], object] = lambda: None
        self.acquired: Callable[[], object] = lambda: None
        self.completed: Callable[[], object] = lambda: None

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        self.asking()
        grant = super().acquire(job_id, owner, ttl)
        self.clock.advance(self.takes)
        self.acquired()
        return grant

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        super().complete(token, result, conn)
        self.completed()

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        answer = super().renew_many(wanted)
        return self.bends.pop(0)(answer) if self.bends else answer


class Marks(MemoryMarks):
    """A sink; before it is armed something may happen, and it may say that it has seen more than it has."""

    def __init__(self, before: Callable[[], object] = lambda: None, ahead: Sequence[int] = ()) -> None:
        super().__init__()
        self.before, self.ahead = before, list(ahead)

    def arm(self, bearer: Any) -> Any:
        self.before()
        if self.ahead:
            super().arm(Token(bearer.token.job_id, self.ahead.pop(), "mistaken:1"))
        return super().arm(bearer)


class Hand(Scene):
    """A manager without threads of its own."""

    def __init__(self, heartbeat: float) -> None:
        super().__init__()
        self.clock = HandClock()
        self.store = Bent(self.clock)
        self.told: list[Lease] = []
        self.exits = False
        self.leases = Leases(
            self.store,
            ttl=TTL,
            heartbeat=heartbeat,
            on_lost=self.tell,
            _clock=self.clock,
            _pause=self.clock.advance,
        )
        self.heartbeat = self.leases._holders.open()._heartbeat
        self.heartbeat._start = lambda run: threading.Thread()

    def tell(self, lease: Lease, error: Exception) -> None:
        self.told.append(lease)
        if self.exits:
            raise SystemExit

    def beat(self) -> None:
        """What the heartbeat's threads do when they wake up."""
        due = [beat.due for beat in self.heartbeat._beating.values()]
        if due and min(due) <= self.clock():
            self.heartbeat.beat()
        self.heartbeat.look()
        self.heartbeat.tell()

    def passes(self, seconds: float) -> None:
        """Let time pass, by quarters of a second."""
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)
            self.beat()

    @contextmanager
    def kept(self, **options: Any) -> Generator[Lease]:
        """Surround the body of a lease that nothing is to take away."""
        try:
            with self.leases.hold(self.job, **options) as lease:
                yield lease
                if lease.lost.is_set():
                    self.break_("L4", "it is lost, and nobody else has the job")
        except LeaseLost as lost:
            self.break_("L4", lost)
        if self.told:
            self.break_("L4", "it was told to be lost")

    @contextmanager
    def learns(self, kind: type[Exception]) -> Generator[None]:
        """Surround what a late worker does: it must be told by this error."""
        try:
            yield
        except kind:
            return
        except Exception as error:
            self.break_("L3", error)
        else:
            self.break_("L3", f"no {kind.__name__}")

    @contextmanager
    def goes_on(self) -> Generator[None]:
        """Surround what the next owner does."""
        try:
            yield
        except Exception as error:
            self.break_("L1", error)

    def free(self, job_id: str) -> None:
        """Nobody may have the job."""
        record = self.store.get(job_id)
        if record is not None and record.owner is not None:
            self.break_("L5", "the job is held by nobody who works")


def by_hand(heartbeat: float) -> Callable[[Callable[[Hand], None]], Callable[[Ground], Scene]]:
    """A scene at a manager that is moved by hand."""

    def named(play: Callable[[Hand], None]) -> Callable[[Ground], Scene]:
        def scene(ground: Ground) -> Scene:
            hand = Hand(heartbeat)
            play(hand)
            return hand

        return scene

    return named


class InLoop:
    """A store for an event loop, in memory."""

    durable = False
    jumps = False

    def __init__(self) -> None:
        self.sync = MemoryStore()
        self.acquired: Callable[[], Awaitable[object]] | None = None

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        grant = self.sync.acquire(job_id, owner, ttl)
        if self.acquired is not None:
            await self.acquired()
        return grant

    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        return self.sync.reacquire_above(token, n, owner, ttl)

    async def renew(self, token: Token, ttl: float, conn: object = None) -> Any:
        return self.sync.renew(token, ttl, conn)

    async def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        self.sync.complete(token, result, conn)

    async def release(self, token: Token, conn: object = None) -> None:
        self.sync.release(token, conn)
