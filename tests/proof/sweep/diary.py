"""What the owners of one job were told, and what its destination shows, in the order in which it is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sinkfence.errors import LeaseLost, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_trials.history import Event, Type

T = TypeVar("T")

CALLS = 3
"""How often an owner makes one call at most: its connection is cut once."""


@dataclass(frozen=True)
class Effect:
    """What the destination shows."""

    generation: int
    owner: str
    id: str


class Diary:
    """One job's events. With a `step`, all writes are that step, and owners repeat what got no answer."""

    def __init__(self, job: str, step: str | None = None, ttl: float = 0.05) -> None:
        self.job = job
        self.step = step
        self.ttl = ttl
        """Seconds for which the first owner is granted its lease; all others have it for a minute."""
        self.events: list[Event] = []
        self.told: list[str] = []
        """The errors after which an owner repeated its call."""
        self._seen: list[Effect] = []
        self._keys: dict[str, str | None] = {}

    def add(self, f: str, type: Type, token: Token, key: str | None = None, **value: Any) -> None:
        """Write down what happens now."""
        who = threading.current_thread().name
        value["owner"] = token.owner
        self.events.append(Event(time.monotonic(), who, f, type, self.job, token.generation, key, value))

    def issued(self, token: Token) -> None:
        """A token that was granted, one second after the one before it by the store's clock."""
        now = float(token.generation)
        self.add("acquire", "ok", token, now=now, until=now + 1, ttl=1)

    @contextmanager
    def arming(self, token: Token) -> Generator[None]:
        """Surround an arming."""
        yield
        self.add("arm", "ok", token)

    @contextmanager
    def writing(self, token: Token, *lost: type[Exception]) -> Generator[str]:
        """Surround a write; the id of this attempt is what the destination is given to keep.

        By the errors `lost` the client says that nothing was done: they are taken at their word.
        """
        attempt = f"{token.owner}/{len(self.events)}"
        self._keys[attempt] = self.step
        self.add("write", "invoke", token, self.step, id=attempt)
        outcome: Type = "info"
        try:
            yield attempt
            outcome = "ok"
        except StaleToken as stale:
            outcome = "info" if stale.earlier_attempt_unknown else "fail"
            raise
        except (LeaseLost, *lost):
            outcome = "fail"
            raise
        finally:
            self.add("write", outcome, token, self.step, id=attempt)

    def answered(self, call: Callable[[], T], *lost: type[Exception]) -> T:
        """Make a call; where there is a step, again and again until it is answered, however it is."""
        for _ in range(CALLS - 1 if self.step else 0):
            try:
                return call()
            except (OutcomeUnknown, *lost) as error:
                self.told.append(type(error).__name__)
        return call()

    def look(self, truth: list[Effect], since: float) -> None:
        """Write down the effects that are new; they are no older than the look before."""
        before = self._seen.copy()
        for effect in truth:
            if effect in before:
                before.remove(effect)
                continue
            self._seen.append(effect)
            key = self._keys.get(effect.id, self.step)
            value = {"owner": effect.owner, "id": effect.id}
            event = Event(since, "observer", "effect", "ok", self.job, effect.generation, key, value)
            self.events.append(event)
