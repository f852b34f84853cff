"""Which marks a picture can show: those that would lie on one another become one, with a count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sinkfence_trials.timeline.plan import Plan
from sinkfence_trials.timeline.scenes import Kind, Mark

GRAIN: Final[dict[Kind, float]] = {"request": 6, "effect": 4, "refusal": 2, "unknown": 2}
"""How near, in the picture's units, marks of a kind have to be to become one: refusals least."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A mark in its place, and how many it stands for."""

    mark: Mark
    x: float
    y: float
    colour: int
    count: int


def drawn(marks: Iterable[Mark], plan: Plan) -> list[Drawn]:
    """Place the marks, thinned: nothing is left without a mark where it is, of its kind and its colour."""
    kept: dict[tuple[object, ...], Drawn] = {}
    for mark in marks:
        x, y, colour = plan.x(mark.t), plan.row(mark.lane).y, plan.colour(mark.worker)
        # By colour and not by worker: of those there may be any number.
        at = (mark.kind, y, colour, int(x / GRAIN[mark.kind]))
        before = kept.get(at)
        kept[at] = Drawn(mark, x, y, colour, 1) if before is None else replace(before, count=before.count + 1)
    return sorted(kept.values(), key=lambda each: each.x)
