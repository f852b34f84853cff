"""What has a length in the picture: holds, faults, and since when a destination has seen a generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.plan import Plan
from sinkfence_trials.timeline.run import Lane, Moment, Run
from sinkfence_trials.timeline.text import Room, safe, seconds, width
from sinkfence_trials.timeline.thinning import thinned

INSET: Final = {"seen": 2, "hold": 4, "fault": 5, "kill": 5}
"""How far a bar of each kind stays away from its lane's borders."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar in its place."""

    kind: str
    y: float
    begin: float
    end: float
    colour: int
    told: str
    words: tuple[str, ...] = ()
    """What may be written in it, from long to short."""


def bars(run: Run, plan: Plan) -> list[tuple[Bar, int]]:
    """Place a run's bars, each with how many it stands for; the later cover the earlier."""
    kept: list[tuple[Bar, int]] = []
    for placed in (_seen(run, plan), _holds(run, plan), _faults(run, plan)):
        # Of those that begin at the same place the longest is kept.
        longest_first = sorted(placed, key=lambda bar: bar.begin - bar.end)
        kept += thinned(
            longest_first, lambda bar, grain: (bar.y, int(bar.begin / grain)), plan.format.width / 2
        )
    return kept


def drawn(bar: Bar, count: int, plan: Plan, hatch: str) -> str:
    """Draw a bar."""
    half = plan.format.lane / 2 - INSET[bar.kind]
    told = bar.told + (f", and {count - 1} more" if count > 1 else "")
    return (
        f'<g class="c{bar.colour}"><rect class="{bar.kind}"{hatch if bar.kind == "fault" else ""} '
        f'x="{bar.begin:.1f}" y="{bar.y - half:g}" width="{max(bar.end - bar.begin, 1):.1f}" '
        f'height="{half * 2:g}"/><title>{safe(told)}</title></g>'
    )


def written(bar: Bar, plan: Plan, room: Room) -> str:
    """Write in a bar what it is, where there is room for it."""
    size = plan.format.font - (2.5 if bar.kind == "seen" else 1)
    for text in bar.words:
        wide = width(text, size)
        begin = (bar.begin + bar.end - wide) / 2 if bar.kind == "fault" else bar.begin + 6
        if begin + wide > bar.end - 2 or room.first(bar.y, [(begin, begin + wide)]) is None:
            continue
        at = f'y="{bar.y + 4.5:g}"'
        if bar.kind == "fault":
            plate = f'<rect class="plate" x="{begin:.1f}" y="{bar.y - 8:g}" width="{wide:.1f}" height="16"/>'
            middle = begin + wide / 2
            return f'{plate}<text class="in" x="{middle:.1f}" {at} text-anchor="middle">{safe(text)}</text>'
        klass = f"faint c{bar.colour}" if bar.kind == "seen" else "in"
        return f'<text class="{klass}" x="{begin:.1f}" {at}>{safe(text)}</text>'
    return ""


def _holds(run: Run, plan: Plan) -> Iterator[Bar]:
    for hold in run.holds:
        number = f"generation {hold.generation}"
        yield Bar(
            "hold",
            plan.y(Lane("store", hold.job)),
            plan.x(hold.begin),
            plan.x(hold.end),
            plan.colour(hold.worker),
            f"{number}: {hold.worker}, for {seconds(hold.end - hold.begin)}, {hold.how}",
            (f"{number}: {hold.worker}", number, f"{hold.generation}"),
        )


def _faults(run: Run, plan: Plan) -> Iterator[Bar]:
    for fault in run.faults:
        y, begin, colour = (
            plan.y(Lane("worker", fault.worker)),
            plan.x(fault.begin),
            plan.colour(fault.worker),
        )
        if fault.end is None:
            yield Bar("kill", y, begin, begin + 2.5, colour, f"{fault.worker}: {fault.kind}")
        else:
            words = f"{fault.kind}, {seconds(fault.end - fault.begin)}"
            yield Bar(
                "fault", y, begin, plan.x(fault.end), colour, f"{fault.worker}: {words}", (words, fault.kind)
            )


def _seen(run: Run, plan: Plan) -> Iterator[Bar]:
    """Tint each destination's lane in the colour of the newest owner that has armed it."""
    lanes: dict[Lane, list[Moment]] = {}
    for armed in run.of("armed"):
        steps = lanes.setdefault(armed.lane, [])
        if not steps or (armed.generation or 0) > (steps[-1].generation or 0):
            steps.append(armed)
    for lane, steps in lanes.items():
        ends = [plan.x(armed.t) for armed in steps[1:]] + [plan.right]
        for armed, end in zip(steps, ends, strict=True):
            seen = (f"has seen {armed.generation}",)
            yield Bar(
                "seen", plan.y(lane), plan.x(armed.t), end, plan.colour(armed.worker), armed.words, seen
            )
