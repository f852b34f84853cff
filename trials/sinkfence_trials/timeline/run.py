"""A run, as the things that a timeline shows. All instants are those of the history's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Kind = Literal["armed", "request", "effect", "refusal", "unknown", "flaw"]
"""Of a moment. Armed: from here on a destination has seen a generation."""

STORE: Final = "lease store"


class Lane(NamedTuple):
    """Where something is shown."""

    of: Literal["worker", "store", "sink"]
    name: str
    """The worker's; else the job's."""
    sink: str = ""
    """Which of the job's destinations."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One generation of a job, from its grant until it ended or ran out, by the store's clock."""

    job: str
    generation: int
    worker: str
    begin: float
    end: float
    how: Literal["ran out", "released", "completed"] = "ran out"


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened at one instant."""

    t: float
    kind: Kind
    lane: Lane
    worker: str
    """Whose it is."""
    generation: int | None
    words: str
    began: float | None = None
    """When the worker began to do it."""
    sent: float | None = None
    """When it left the worker, where that was later."""
    rules: tuple[str, ...] = ()
    """Of a flaw: the invariants that it breaks."""

    @property
    def where(self) -> str:
        """At which of the job's destinations, to follow the words."""
        return f" at {self.lane.sink}" if self.lane.sink else ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to a worker or to the store."""

    worker: str
    kind: str
    begin: float
    end: float | None
    """None for what has no length, such as a kill."""


@dataclass(slots=True)
class Run:
    """All of it."""

    begin: float = 0.0
    end: float = 0.0
    holds: list[Hold] = field(default_factory=list[Hold])
    moments: list[Moment] = field(default_factory=list[Moment])
    faults: list[Fault] = field(default_factory=list[Fault])
    jobs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The names of each job's destinations."""
    workers: list[str] = field(default_factory=list[str])
    servers: list[str] = field(default_factory=list[str])
    """And whatever else faults befell."""

    def of(self, kind: Kind) -> list[Moment]:
        """The moments of one kind."""
        return [moment for moment in self.moments if moment.kind == kind]
