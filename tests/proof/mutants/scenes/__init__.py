"""What mutants are put through: fixed interleavings on real servers, told to the checker.

Each scene is a function of the `Ground` that it may use, and returns the `Scene` that it has played. On the
shipped code no invariant is broken in any of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sinkfence.errors import Conflict, LeaseHeld, LeaseLost, NotArmed, NotEnforced, StaleToken
from sinkfence.tokens import Token
from sinkfence_trials.checker import check
from sinkfence_trials.history import Event, Type

JOB = "mutant"
BASE = 3_000_000_000
"""Generations start above it, where 31 bits have run out."""
REFUSALS = (StaleToken, LeaseLost)
"""How a late owner learns that it is one."""
NOTHING_DONE = (Conflict, LeaseHeld, LeaseLost, NotArmed, NotEnforced)


@dataclass(frozen=True)
class Ground:
    """The real servers."""

    dsn: str
    """An empty database."""
    cluster: Any
    """The server's processes, for who may kill it."""
    s3: tuple[Any, Any]
    """Two clients."""
    bucket: str
    prefix: str


@dataclass(frozen=True)
class Effect:
    """What the destination shows."""

    generation: int
    owner: str
    id: str
    seq: int = 0
    """Its place among the effects, where the destination counts them."""


class Scene:
    """One job's story: who asked for what, what was answered, and what the destination shows in between."""

    def __init__(self, truth: Callable[[], list[Effect]] = list, job: str = JOB) -> None:
        self.job = job
        self.events: list[Event] = []
        self.notes: list[str] = []
        self._truth = truth
        self._seen: list[Effect] = []
        self._stuck: set[str] = set()
        self._asked: dict[str, dict[str, Any]] = {}

    @property
    def broken(self) -> set[str]:
        """The invariants that this story breaks: S and D by the checker, L as the scenes found."""
        return {violation.invariant for violation in check(self.events)} | self._stuck

    def add(self, f: str, type: Type, token: Token, key: str | None = None, **value: Any) -> None:
        """Write down what happens now."""
        value = {"owner": token.owner, **value}
        event = Event(time.monotonic(), "scene", f, type, self.job, token.generation, key, value)
        self.events.append(event)

    def break_(self, invariant: str, why: object) -> None:
        """Note that an invariant of progress is broken."""
        self._stuck.add(invariant)
        self.notes.append(f"{invariant}: {why!r}")

    def issued(self, generation: int, owner: str) -> Token:
        """A token that a counter has granted, one second after the one before it by the counter's clock."""
        token = Token(self.job, BASE + generation, f"{owner}:{generation}")
        now = float(generation)
        self.add("acquire", "ok", token, now=now, until=now + 1, ttl=1)
        return token

    def look(self) -> None:
        """Write down the effects that are new."""
        for effect in self._truth():
            if effect not in self._seen:
                self._seen.append(effect)
                asked = self._asked.get(effect.id, {})
                token = Token(self.job, effect.generation, effect.owner)
                self.add("effect", "ok", token, asked.get("key"), id=effect.id, **asked.get("value", {}))

    def armed(self, token: Token) -> None:
        """Write down an arming whose answer is here. What is not seen before that can't come later."""
        self.add("arm", "ok", token)

    @contextmanager
    def arming(self, token: Token, otherwise: str = "L1") -> Generator[None]:
        """Surround the arming of the newest owner."""
        try:
            yield
        except Exception as error:
            self.break_(otherwise, error)
            return
        self.look()
        self.armed(token)

    @contextmanager
    def writing(
        self, token: Token, key: str | None = None, attempt: str | None = None, **value: Any
    ) -> Generator[str]:
        """Surround a write; its id is what the destination is given to keep."""
        attempt = attempt or f"{token.owner}/{len(self.events)}"
        self._asked[attempt] = {"key": key, "value": value}
        self.add("write", "invoke", token, key, id=attempt, **value)
        outcome: Type = "info"
        try:
            yield attempt
            outcome = "ok"
        except StaleToken as stale:
            outcome = "info" if stale.earlier_attempt_unknown else "fail"
            raise
        except NOTHING_DONE:
            outcome = "fail"
            raise
        finally:
            self.add("write", outcome, token, key, id=attempt, **value)
            self.look()

    @contextmanager
    def rightful(self, token: Token, key: str | None = None, **value: Any) -> Generator[str]:
        """Surround a write of the newest owner, which must be let in."""
        try:
            with self.writing(token, key, **value) as attempt:
                yield attempt
        except Exception as error:
            self.break_("L1", error)

    @contextmanager
    def late(
        self, token: Token, key: str | None = None, also: tuple[type[Exception], ...] = (), **value: Any
    ) -> Generator[str]:
        """Surround a write of an owner whose successor has armed by its end: it must be told."""
        try:
            with self.writing(token, key, **value) as attempt:
                yield attempt
        except (*REFUSALS, *also):
            return
        except Exception as error:
            self.break_("L3", error)
        else:
            self.break_("L3", f"{attempt} was not refused")


def begun(work: Callable[..., object], *args: object) -> Future[Any]:
    """Start work in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="scene", daemon=True).start()
    return future
