"""Where everything goes in a picture of a given width: the lanes from top to bottom, and the time across."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.scenes import Lane, Scenes

MOST_WORKERS: Final = 40
"""Lanes of workers that are shown; beyond them, those that nothing befell share one."""
COLOURS: Final = 7
OTHERS: Final = "all others"


@dataclass(frozen=True, slots=True)
class Format:
    """A width, and where the lanes' names stand."""

    name: str
    width: float
    names: float
    """Room for the names at the left; 0 puts each above its lane, for narrow screens."""
    lane: float
    font: float


WIDE: Final = Format("wide", 1000, 136, 30, 13.5)
NARROW: Final = Format("narrow", 380, 0, 28, 13.5)


@dataclass(frozen=True, slots=True)
class Row:
    """One lane in its place."""

    lane: Lane
    name: str
    y: float
    """Its middle."""


class Plan:
    """The places of one picture."""

    def __init__(self, run: Scenes, format: Format, top: float) -> None:
        self.format = format
        self.left: float = format.names + 12
        self.right: float = format.width - 12
        self._begin = run.begin
        room = 0.03 if len(run.jobs) > 1 else 0.16 if format.names else 0.28
        # Room at the right, for the words beside the last marks.
        self._span = max(run.end - run.begin, 0.001) * (1 + room)
        self.rows: dict[Lane, Row] = {}
        self.heads: list[tuple[str, float]] = []
        self._colours = {worker: index % COLOURS for index, worker in enumerate(run.workers)}
        self._y = top
        for worker in _worth_a_lane(run):
            self._add(("worker", worker, ""), worker)
        for job, sinks in run.jobs.items():
            self._y += 8
            self._head(job)
            self._add(("lease", job, ""), "lease store")
            for sink in sinks:
                self._add(("sink", job, sink), sink or "destination")
        self.bottom: float = self._y

    def x(self, t: float) -> float:
        """Where an instant is, from left to right."""
        at = self.left + (t - self._begin) / self._span * (self.right - self.left)
        return min(max(at, self.left), self.right)

    def row(self, lane: Lane) -> Row:
        """Where a lane is; a worker without one shares the last."""
        return self.rows.get(lane) or self.rows["worker", OTHERS, ""]

    def colour(self, worker: str) -> int:
        """Which of the colours is a worker's: of neighbours in the list, each has another."""
        return self._colours.get(worker, 0)

    def ticks(self) -> list[tuple[float, str]]:
        """Instants for the axis, and what stands at them."""
        step = next(
            (
                step
                for power in range(-3, 6)
                for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                if self._span / step <= (self.right - self.left) / 75
            ),
            self._span,
        )
        digits = 0 if step >= 1 else 1 if step >= 0.1 else 3
        count = int(self._span / step) + 1
        return [(self._begin + each * step, f"{each * step:.{digits}f} s") for each in range(count)]

    def _head(self, name: str) -> None:
        self.heads.append((name, self._y + 14))
        self._y += 20

    def _add(self, lane: Lane, name: str) -> None:
        if not self.format.names:
            self._y += self.format.font + 3
        self.rows[lane] = Row(lane, name, self._y + self.format.lane / 2)
        self._y += self.format.lane


def _worth_a_lane(run: Scenes) -> list[str]:
    if len(run.workers) <= MOST_WORKERS:
        return run.workers
    told = {fault.worker for fault in run.faults} | {flaw.worker for flaw in run.flaws}
    told |= {mark.worker for mark in run.marks if mark.kind == "refusal"}
    shown = [worker for worker in run.workers if worker in told] or run.workers
    return [*shown[: MOST_WORKERS - 1], OTHERS]
