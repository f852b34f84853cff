"""Where everything goes in a picture of a given width: the lanes from top to bottom, and the time across."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.run import STORE, Lane, Run
from sinkfence_trials.timeline.style import COLOURS

MOST_WORKERS: Final = 40
"""Lanes of workers that are shown; beyond them, those that nothing befell share one."""
OTHERS: Final = Lane("worker", "all others")


@dataclass(frozen=True, slots=True)
class Format:
    """A width, and where the lanes' names stand."""

    name: str
    width: float
    names: float
    """Room for the names at the left; 0 puts each above its lane, for narrow screens."""
    lane: float
    font: float = 13.5


WIDE: Final = Format("wide", 1000, 136, 30)
NARROW: Final = Format("narrow", 380, 0, 28)


@dataclass(frozen=True, slots=True)
class Row:
    """One lane in its place."""

    name: str
    y: float
    """Its middle."""
    colour: int | None = None
    """A worker's."""


class Plan:
    """The places of one picture."""

    def __init__(self, run: Run, format: Format, top: float) -> None:
        self.format = format
        self.left: float = format.names + 12
        self.right: float = format.width - 12
        self._begin = run.begin
        room = 0.03 if len(run.jobs) > 1 else 0.16 if format.names else 0.28
        # Room at the right, for the words beside the last moments.
        self._span = max(run.end - run.begin, 0.001) * (1 + room)
        self.rows: dict[Lane, Row] = {}
        self.heads: list[tuple[str, float]] = []
        self._colours = {worker: index % COLOURS for index, worker in enumerate(run.workers)}
        self._y = top
        for worker in _worth_a_lane(run):
            self._add(Lane("worker", worker), worker, self.colour(worker))
        for server in run.servers:
            self._add(Lane("worker", server), server)
        for job, sinks in run.jobs.items():
            self.heads.append((job, self._y + 22))
            self._y += 28
            self._add(Lane("store", job), STORE)
            for sink in sinks:
                self._add(Lane("sink", job, sink), sink or "destination")
        self.bottom: float = self._y

    def x(self, t: float) -> float:
        """Where an instant is, from left to right."""
        at = self.left + (t - self._begin) / self._span * (self.right - self.left)
        return min(max(at, self.left), self.right)

    def y(self, lane: Lane) -> float:
        """Where a lane's middle is; workers without a lane share the last."""
        return (self.rows.get(lane) or self.rows[OTHERS]).y

    def colour(self, worker: str) -> int:
        """Which of the colours is a worker's: of neighbours in the list, each has another."""
        return self._colours.get(worker, 0)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Instants for the axis, and what stands at them."""
        least = self._span * 75 / (self.right - self.left)
        steps = (first * 10.0**power for power in range(-3, 6) for first in (1, 2, 5))
        step = next((step for step in steps if step >= least), self._span)
        digits = 0 if step >= 1 else 1 if step >= 0.1 else 3
        for each in range(int(self._span / step) + 1):
            yield self._begin + each * step, f"{each * step:.{digits}f} s"

    def _add(self, lane: Lane, name: str, colour: int | None = None) -> None:
        if not self.format.names:
            self._y += self.format.font + 3
        self.rows[lane] = Row(name, self._y + self.format.lane / 2, colour)
        self._y += self.format.lane


def _worth_a_lane(run: Run) -> list[str]:
    if len(run.workers) <= MOST_WORKERS:
        return run.workers
    told = {fault.worker for fault in run.faults}
    told |= {moment.worker for moment in run.moments if moment.kind in ("flaw", "refusal")}
    shown = [worker for worker in run.workers if worker in told] or run.workers
    return [*shown[: MOST_WORKERS - 1], OTHERS.name]
