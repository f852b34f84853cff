"""The sweep over message boundaries: an owner frozen at each of them, and its successor's whole tenure.

A clean tenure through the proxy says how many messages there are. Then, for each of them, the old owner is
frozen there (its request written and not delivered, or done and the reply not delivered); a successor works
from beginning to end, past the proxy; and the message is released, or the connection cut and everything tried
again. The old owner never learns of the takeover but from the destination. What happened is judged by the
checker, from what each side was told and from the truth, which is read past the sink.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from checker import Violation, check
from history import Event, Type
from proxy import FaultProxy
from proxy import Place as Message

from sinkfence.errors import LeaseLost, StaleToken
from sinkfence.tokens import Token

PATIENCE = 60
Then = Literal["release", "cut"]


class Diary:
    """What the owners and the truth of one job say, in the order in which it is said."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.events: list[Event] = []

    def add(self, f: str, type: Type, token: Token, key: str | None = None, **value: object) -> None:
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
    def writing(self, token: Token) -> Generator[str]:
        """Surround a write; the id of this attempt is what the destination is given to keep."""
        attempt = f"{token.owner}/{len(self.events)}"
        self.add("write", "invoke", token, id=attempt)
        outcome: Type = "info"
        try:
            yield attempt
            outcome = "ok"
        except StaleToken as stale:
            outcome = "info" if stale.earlier_attempt_unknown else "fail"
            raise
        except LeaseLost:
            outcome = "fail"
            raise
        finally:
            self.add("write", outcome, token, id=attempt)


@dataclass(frozen=True)
class Effect:
    """What the destination shows."""

    generation: int
    owner: str
    id: str


class Place(Protocol):
    """A destination, as the sweep uses it."""

    @property
    def upstream(self) -> tuple[str, int]:
        """Where its server listens."""
        ...

    def before(self, token: Token, diary: Diary) -> None:
        """What happens before this owner's tenure: it is issued the token."""
        ...

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        """One owner's work from beginning to end, with its own clients, by way of this address."""
        ...

    def truth(self, job: str) -> list[Effect]:
        """All effects in the order in which they were applied, or the last where no more can be seen."""
        ...


@dataclass
class Case:
    """One run: where the old owner was frozen, and how it went."""

    at: Message
    then: Then
    errors: list[Exception] = field(default_factory=list)
    """What the old owner's attempts ended with."""
    violations: list[Violation] = field(default_factory=list)
    winner: str = ""
    """Whose effect is the last one."""

    @property
    def title(self) -> str:
        """For people."""
        connection, direction, message = self.at
        return f"frozen at {direction} {message} of connection {connection}, then {self.then}"


def messages(place: Place) -> list[Message]:
    """All messages of a clean tenure."""
    diary = Diary("sweep/clean")
    with FaultProxy(*place.upstream) as proxy:
        place.tenure(proxy.address, Token(diary.job, 1, "A:1"), diary)
        return proxy.drained()


def sweep(place: Place, then: tuple[Then, ...] = ("release", "cut")) -> Iterator[Case]:
    """Every message in both directions, and each way on.

    Where a client does not wait for what is held (the farewell of a connection that it closes), its owner is
    not frozen but runs beside its successor: the same must come out.
    """
    for message in messages(place):
        for way in then:
            yield play(place, Case(message, way))


def play(place: Place, case: Case) -> Case:
    """Freeze the old owner, let the successor work, let the old one go on."""
    diary = Diary("/".join(map(str, ("sweep", *case.at, case.then))))
    old, new = Token(diary.job, 1, "A:1"), Token(diary.job, 2, "B:2")
    seen: list[Effect] = []

    def observe(since: float) -> None:
        """Write down the effects that are new; they are no older than the look before."""
        for effect in place.truth(diary.job):
            if effect not in seen:
                seen.append(effect)
                value = {"owner": effect.owner, "id": effect.id}
                diary.events.append(
                    Event(since, "observer", "effect", "ok", diary.job, effect.generation, None, value)
                )

    with FaultProxy(*place.upstream) as proxy:
        stop = proxy.stop(case.at.direction, case.at.message, case.at.connection)
        place.before(old, diary)
        began = time.monotonic()
        worker = in_background(lambda: place.tenure(proxy.address, old, diary), case.errors)
        stop.wait(PATIENCE)
        observe(began)

        place.before(new, diary)
        began = time.monotonic()
        place.tenure(place.upstream, new, diary)
        observe(began)

        after = time.monotonic()
        if case.then == "cut":
            stop.cut()
        else:
            stop.release()
        worker.join(PATIENCE)
        assert not worker.is_alive(), f"{case.title}: the old owner did not come to an end"
        if case.then == "cut":  # it knows nothing, and tries again
            in_background(lambda: place.tenure(proxy.address, old, diary), case.errors).join(PATIENCE)
        observe(after)
    case.violations = check(sorted(diary.events, key=lambda event: event.t))
    case.winner = place.truth(diary.job)[-1].owner
    return case


def in_background(work: Callable[[], None], errors: list[Exception]) -> threading.Thread:
    """Run the old owner in a thread of its own, and keep how it ended."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="old owner")
    thread.start()
    return thread
