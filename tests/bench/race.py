"""A race: contestants that take turns, in a new random order each round, compared within the round."""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Turn = Callable[[], float]
"""Does a fixed amount of work; returns what it cost, or its rate, in the race's unit."""

CONTROL = "A/A control"
"""The baseline once more, under another name: how far two equal things seem apart here."""


@dataclass(frozen=True)
class Goal:
    """A bound for a ratio, or for a figure."""

    sign: str
    bound: float

    def met(self, value: float) -> bool:
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"

    @classmethod
    def read(cls, text: str) -> Goal:
        """Return the goal that was written so."""
        sign, bound = text.split()
        return cls(sign, float(bound))


def at_most(bound: float) -> Goal:
    return Goal("<=", bound)


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


@dataclass(frozen=True)
class Figure:
    """What is counted, and needs no comparison."""

    title: str
    value: float
    unit: str
    goal: Goal | None = None


@dataclass(frozen=True)
class Race:
    """What is compared, by what, and with what aim."""

    title: str
    unit: str
    contestants: Mapping[str, Turn]
    baseline: str
    goals: Mapping[str, Goal] = field(default_factory=dict)
    better: str = "low"
    """`low` where turns return costs, `high` where they return rates."""
    rounds: int = 15

    def __post_init__(self) -> None:
        if self.baseline not in self.contestants or not set(self.goals) <= set(self.contestants):
            raise ValueError(f"{self.title}: the baseline and the goals are of contestants")


@dataclass(frozen=True)
class Standing:
    """How one contestant has done: its values, and its ratios to the baseline of the same round."""

    name: str
    values: list[float]
    ratios: list[float]
    goal: Goal | None

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.ratios) < 2:
            return self.ratio, self.ratio
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Result:
    """A race that was run."""

    title: str
    unit: str
    better: str
    baseline: str
    standings: list[Standing]


def compared(
    title: str,
    unit: str,
    better: str,
    baseline: str,
    values: Mapping[str, list[float]],
    goals: Mapping[str, Goal],
) -> Result:
    """Return what became of a race, from the values of each contestant in each round."""
    base = values[baseline]
    return Result(
        title,
        unit,
        better,
        baseline,
        [
            Standing(
                name,
                of_name,
                [one / other for one, other in zip(of_name, base, strict=True)],
                goals.get(name),
            )
            for name, of_name in values.items()
        ],
    )


def play(race: Race, *, rounds: int | None, seed: int) -> Result:
    """Run a race: a round to warm up, which counts for nothing, then the rounds."""
    order = random.Random(f"{seed} {race.title}")
    turns = dict(race.contestants) | {CONTROL: race.contestants[race.baseline]}
    values: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(1 + (rounds or race.rounds)):
        for name in order.sample(list(turns), len(turns)):
            value = turns[name]()
            if number > 0:
                values[name].append(value)
    return compared(race.title, race.unit, race.better, race.baseline, values, race.goals)


def timed(work: Callable[[], object], *, times: int = 1, unit: float = 1.0) -> Turn:
    """Make a turn: the wall time of the work, divided by `times`, in units of `unit` seconds."""
    return _measured(time.perf_counter, work, times * unit)


def burned(work: Callable[[], object], *, times: int = 1, unit: float = 1.0) -> Turn:
    """The same with this process' CPU time, of all its threads."""
    return _measured(time.process_time, work, times * unit)


def _measured(clock: Callable[[], float], work: Callable[[], object], divisor: float) -> Turn:
    def turn() -> float:
        before = clock()
        work()
        return (clock() - before) / divisor

    return turn


def absent(*modules: str) -> list[str]:
    """Return those of the modules that are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]
