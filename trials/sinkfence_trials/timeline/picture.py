"""The picture of a run, one SVG: who worked when, what arrived where, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.bars import bars, drawn, written
from sinkfence_trials.timeline.plan import Format, Plan
from sinkfence_trials.timeline.run import Kind, Lane, Moment, Run
from sinkfence_trials.timeline.text import Room, safe, shortened, width
from sinkfence_trials.timeline.thinning import thinned

LINES: Final = 24
"""Refusals up to this number have a line from where they began; flaws always have one."""

LABELS: Final = 200
"""Refusals and flaws that have words beside them, where there is room; all have tooltips."""

LEGEND: Final[dict[Kind, str]] = {
    "request": "began",
    "effect": "took effect",
    "refusal": "refused",
    "flaw": "broke a rule",
    "unknown": "no answer",
}

SHAPES: Final[dict[Kind, str]] = {
    "effect": '<circle r="4.5"/>',
    "refusal": '<path class="cross" d="M-5-5 5 5M-5 5 5-5"/>',
    "request": '<path d="M-3-4.5 4.5 0-3 4.5z"/>',
    "unknown": '<circle class="ring" r="4"/>',
    "flaw": '<path class="flaw" d="M0-8 8 0 0 8-8 0z"/>',
}

GRAIN: Final[dict[Kind, float]] = {"request": 6, "effect": 4, "refusal": 2, "unknown": 2, "flaw": 1}
"""How near moments of a kind have to be to become one: flaws least."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG's content, and its size."""

    body: str
    width: float
    height: float

    def svg(self, describe: str, klass: str) -> str:
        """Return it as an element of an HTML page."""
        return (
            f'<svg class="timeline {klass}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{safe(describe)}">{self.body}</svg>'
        )


@dataclass(frozen=True, slots=True)
class _Dot:
    moment: Moment
    x: float
    y: float
    colour: int

    def place(self, grain: float) -> tuple[Kind, float, int, int]:
        # By colour and not by worker: of those there may be any number.
        kind = self.moment.kind
        return kind, self.y, self.colour, int(self.x / GRAIN[kind] / grain)


def picture(run: Run, format: Format, *, top: float = 0, said: str = "", links: int = 0) -> Picture:
    """Draw a run, `top` below the upper edge.

    `said` stands beside a flaw in place of the rule's name. The first `links` flaws are links to `#flaw-1`,
    `#flaw-2` and so on.
    """
    plan = Plan(run, format, top + 22)
    placed = [
        _Dot(each, plan.x(each.t), plan.y(each.lane), plan.colour(each.worker))
        for each in run.moments
        if each.kind in SHAPES
    ]
    dots = thinned(placed, _Dot.place, format.width)
    dots.sort(key=lambda dot: (dot[0].moment.kind == "flaw", dot[0].x))
    long = bars(run, plan)
    hatch = f"hatch-{format.name}-{top:.0f}"
    room = Room()
    for dot, _ in dots:
        room.take(dot.y, (dot.x - 7, dot.x + 7))
    parts = [
        f'<defs><pattern id="{hatch}" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern></defs>',
        *_frame(plan, top),
        *(drawn(bar, count, plan, f' fill="url(#{hatch})"') for bar, count in long),
        *_lines(dots, plan),
        *(written(bar, plan, room) for bar, _ in long),
        *_marks(dots, {id(flaw): number for number, flaw in enumerate(run.of("flaw")[:links], 1)}),
        *_names(plan),
    ]
    for bar, _ in long:
        if bar.kind == "hold":
            room.take(bar.y, (bar.begin, bar.end))
    parts += _labels(dots, plan, said, room)
    legend, bottom = _legend(run, plan, hatch)
    return Picture("".join([*parts, *legend]), format.width, bottom)


def _frame(plan: Plan, top: float) -> Iterator[str]:
    for instant, words in plan.ticks():
        x = plan.x(instant)
        if x + width(words, 11) / 2 <= plan.format.width:
            anchor = "start" if x - width(words, 11) / 2 < 0 else "middle"
            yield f'<path class="grid" d="M{x:.1f} {top + 18:g}V{plan.bottom:g}"/>'
            yield f'<text class="tick" x="{x:.1f}" y="{top + 12:g}" text-anchor="{anchor}">{words}</text>'
    for row in plan.rows.values():
        yield f'<path class="base" d="M{plan.left:g} {row.y:g}H{plan.right:g}"/>'


def _names(plan: Plan) -> Iterator[str]:
    font = plan.format.font
    for job, y in plan.heads:
        named = job if "job" in job else f"job {job}"
        words = safe(shortened(named, plan.format.width - 24, font))
        yield f'<text class="head" x="12" y="{y:g}">{words}<title>{safe(job)}</title></text>'
    for row in plan.rows.values():
        y = row.y + 4.5 if plan.format.names else row.y - plan.format.lane / 2 - 2
        words = safe(shortened(row.name, (plan.format.names or plan.format.width) - 12, font))
        own = "name" if row.colour is None else f"name c c{row.colour}"
        yield f'<text class="{own}" x="12" y="{y:g}">{words}<title>{safe(row.name)}</title></text>'


def _lines(dots: list[tuple[_Dot, int]], plan: Plan) -> Iterator[str]:
    """Lead from where something began to where it arrived: along its worker's lane until it was sent."""
    refused = [dot for dot, _ in dots if dot.moment.kind == "refusal" and dot.moment.lane.of != "worker"]
    broken = [dot for dot, _ in dots if dot.moment.kind == "flaw"]
    for dot in (refused if len(refused) <= LINES else []) + broken:
        late = dot.moment
        if late.began is not None:
            klass, y = "wrong" if late.kind == "flaw" else "late", plan.y(Lane("worker", late.worker))
            sent = "" if late.sent is None else f"H{plan.x(late.sent):.1f}"
            begin = f"M{plan.x(late.began):.1f} {y:g}"
            yield f'<path class="{klass} c{dot.colour}" d="{begin}{sent}L{dot.x:.1f} {dot.y:g}"/>'


def _marks(dots: list[tuple[_Dot, int]], links: dict[int, int]) -> Iterator[str]:
    for dot, count in dots:
        moment = dot.moment
        told = f"{moment.worker}, generation {moment.generation}: {moment.words}"
        told += f", and {count - 1} more" if count > 1 else ""
        mark = (
            f'<g class="m c{dot.colour}" transform="translate({dot.x:.1f} {dot.y:g})">'
            f"{SHAPES[moment.kind]}<title>{safe(told)}</title></g>"
        )
        number = links.get(id(moment))
        yield mark if number is None else f'<a href="#flaw-{number}">{mark}</a>'


def _labels(dots: list[tuple[_Dot, int]], plan: Plan, said: str, room: Room) -> Iterator[str]:
    """Write beside refusals and flaws what they are, where nothing else stands."""
    size = plan.format.font - 1.5
    wanted = [dot for dot, _ in dots if dot.moment.kind in ("refusal", "flaw")]
    for dot in wanted[:LABELS]:
        moment, klass = dot.moment, f"note c c{dot.colour}"
        texts: tuple[str, ...] = ("refused",)
        if moment.kind == "flaw":
            klass = "note bad"
            texts = (said,) if said else (moment.words, " ".join(moment.rules), moment.rules[0])
        for text in texts:
            wide = width(text, size)
            begins = dot.x + 14, dot.x - 14 - wide
            places = [(x, x + wide) for x in begins if plan.left <= x and x + wide <= plan.right]
            if (at := room.first(dot.y, places)) is not None:
                yield f'<text class="{klass}" x="{at:.1f}" y="{dot.y + 4:g}">{safe(text)}</text>'
                break


def _legend(run: Run, plan: Plan, hatch: str) -> tuple[list[str], float]:
    kinds = {moment.kind for moment in run.moments}
    entries = [(SHAPES[kind], words) for kind, words in LEGEND.items() if kind in kinds]
    if faults := {fault.kind for fault in run.faults}:
        hatched = f'<rect x="-6" y="-6" width="12" height="12" fill="url(#{hatch})"/>'
        entries.append((hatched, faults.pop() if len(faults) == 1 else "a fault"))
    parts: list[str] = []
    x, y = 18.0, plan.bottom + 24
    for shape, words in entries:
        room = 14 + width(words, 12) + 12
        if x + room > plan.format.width and x > 18:
            x, y = 18.0, y + 20
        parts.append(f'<g class="m key" transform="translate({x:.1f} {y:g})">{shape}</g>')
        parts.append(f'<text class="tick" x="{x + 12:.1f}" y="{y + 4:g}">{words}</text>')
        x += room
    return parts, y + 16
