"""One case of a sweep while it is played: two owners, what freezes them, and who looks at the truth."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sinkfence.tokens import Token
from sinkfence_trials.checker import Violation, check
from sinkfence_trials.torture.proxy import FaultProxy
from sinkfence_trials.torture.stops import Place as Message
from sinkfence_trials.torture.stops import Stop
from sweep.diary import Diary, Effect

PATIENCE = 60
JOBS = itertools.count(1)
"""Each case is a job of its own: places may share a database."""
Then = Literal["release", "cut", "repeat", "repeat late"]


class Place(Protocol):
    """A destination, as the sweep uses it."""

    @property
    def upstream(self) -> tuple[str, int]:
        """Where its server listens."""
        ...

    def greet(self, address: tuple[str, int]) -> None:
        """Open a connection and close it, if by that alone messages pass which carry nothing of ours."""
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
    then: Then = "release"
    beside: Message | None = None
    """Where the successor was frozen, too."""
    errors: list[Exception] = field(default_factory=list)
    """What the old owner's attempts ended with."""
    stuck: list[Exception] = field(default_factory=list)
    """What the successor ended with, which nothing may keep from working."""
    repeated: bool = True
    """Whether the old owner repeated what was cut."""
    told: list[str] = field(default_factory=list)
    """The errors after which the old owner repeated its call."""
    violations: list[Violation] = field(default_factory=list)
    winner: str = ""
    """Whose effect is the last one."""

    @property
    def title(self) -> str:
        """For people."""
        connection, direction, message = self.at
        beside = "" if self.beside is None else f", its successor at {' '.join(map(str, self.beside))}"
        return f"frozen at {direction} {message} of connection {connection}{beside}, then {self.then}"

    @property
    def refusal(self) -> str:
        """By what the old owner was refused in the end: the name of an error; "" if it was not."""
        return type(self.errors[-1]).__name__ if self.errors else ""


class Owner:
    """One owner at work in a thread of its own."""

    def __init__(self, name: str, place: Place, address: tuple[str, int], token: Token, diary: Diary) -> None:
        self._errors: list[Exception] = []
        self._over = False
        self._stops: list[Stop] = []
        self._thread = threading.Thread(
            target=self._run, args=(place, address, token, diary), name=name, daemon=True
        )
        self._thread.start()

    def _run(self, place: Place, address: tuple[str, int], token: Token, diary: Diary) -> None:
        try:
            place.tenure(address, token, diary)
        except Exception as error:
            self._errors.append(error)
        self._over = True
        for stop in self._stops:
            stop.frozen.set()

    def reaches(self, stop: Stop) -> bool:
        """Wait until it is frozen there or has come to its end; whether it is frozen."""
        self._stops.append(stop)
        if self._over:  # looked at after the stop was added, as the other thread does it the other way round
            return False
        stop.wait(PATIENCE)
        return not self._over

    def done(self) -> list[Exception]:
        """Wait until it has come to an end, and return how."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"the {self._thread.name} did not come to an end"
        return self._errors


class Stage:
    """Where one case is played: the job's diary and its two tokens."""

    def __init__(self, place: Place, case: Case, step: str | None = None, ttl: float = 0.05) -> None:
        self.place = place
        self.case = case
        self.diary = Diary(f"sweep/{next(JOBS)}", step, ttl)
        self.old, self.new = Token(self.diary.job, 1, "A:1"), Token(self.diary.job, 2, "B:2")

    @contextmanager
    def phase(self) -> Generator[None]:
        """Do something, and then look at the truth: what is new there happened in this phase."""
        since = time.monotonic()
        yield
        self.diary.look(self.place.truth(self.diary.job), since)

    def begins(self, token: Token, address: tuple[str, int]) -> Owner:
        """An owner is issued its token, and begins its tenure in the background."""
        self.place.before(token, self.diary)
        return Owner(
            "successor" if token is self.new else "old owner", self.place, address, token, self.diary
        )

    def begins_anew(self, address: tuple[str, int]) -> Owner:
        """The old owner begins its tenure once more."""
        return Owner("old owner", self.place, address, self.old, self.diary)

    def succeeds(self) -> None:
        """The successor's whole tenure, past the proxy."""
        self.case.stuck += self.begins(self.new, self.place.upstream).done()

    def judged(self) -> Case:
        """The case, with what the checker finds in it."""
        case, diary = self.case, self.diary
        case.violations = check(sorted(diary.events, key=lambda event: event.t))
        case.told = diary.told
        effects = self.place.truth(diary.job)
        case.winner = effects[-1].owner if effects else ""
        return case


def messages(place: Place, step: str | None = None) -> list[Message]:
    """The messages of a clean tenure at which there is something to freeze.

    Two kinds are left out, both told by the count alone. What a connection begins with (a login) carries
    nothing of ours: whoever is frozen there has done no more, and will do no less, than at the first message
    after it. And a farewell, the last message of its connection that nobody answers: its sender does not
    wait for it, and nothing would be frozen.
    """
    with FaultProxy(*place.upstream) as proxy:
        place.greet(proxy.address)
        greeting = Counter(message.direction for message in _answered(proxy.drained()))
    diary = Diary(f"sweep/{next(JOBS)}", step)
    with FaultProxy(*place.upstream) as proxy:
        token = Token(diary.job, 1, "A:1")
        place.tenure(proxy.address, token, diary)
        return [at for at in _answered(proxy.drained()) if at.message > greeting[at.direction]]


def _answered(seen: list[Message]) -> list[Message]:
    last = {message.connection: message for message in seen}
    return [
        message for message in seen if message.direction == "reply" or last[message.connection] != message
    ]
