"""The picture of a run, one SVG: who worked when, what arrived where, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.bars import faults, seen, tenures
from sinkfence_trials.timeline.plan import Format, Plan
from sinkfence_trials.timeline.scenes import Flaw, Mark, Scenes
from sinkfence_trials.timeline.text import safe, shortened, width
from sinkfence_trials.timeline.thinning import Drawn, drawn

LINES: Final = 24
"""Refusals up to this number have a line from their request; flaws always have one."""

LABELS: Final = 200
"""Refusals and flaws that have words beside them, where there is room; all have tooltips."""

LEGEND: Final = (
    ("effect", "took effect"),
    ("refusal", "refused"),
    ("flaw", "broke the rule"),
    ("request", "set out"),
    ("unknown", "no answer"),
    ("fault", "stopped, or another fault"),
)

SHAPES: Final = {
    "effect": '<circle r="4.5"/>',
    "refusal": '<path class="cross" d="M-5-5 5 5M-5 5 5-5"/>',
    "request": '<path d="M-3-4.5 4.5 0-3 4.5z"/>',
    "unknown": '<circle class="ring" r="4"/>',
    "flaw": '<path class="flaw" d="M0-8 8 0 0 8-8 0z"/>',
}


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG's content, and its size."""

    body: str
    width: float
    height: float

    def svg(self, describe: str, klass: str = "") -> str:
        """Return it as an element of an HTML page."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return (
            f'<svg class="timeline {klass}" viewBox="{box}" role="img" aria-label="{safe(describe)}">'
            f"{self.body}</svg>"
        )


def picture(run: Scenes, format: Format, *, top: float = 0, said: str = "") -> Picture:
    """Draw a run, `top` below the upper edge; `said` stands beside a flaw in place of the rule's name."""
    plan = Plan(run, format, top + 22)
    marks = drawn(run.marks, plan)
    hatch = f"hatch-{format.name}-{top:.0f}"
    parts = [
        f'<defs><pattern id="{hatch}" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern></defs>',
        *_frame(plan, top),
        *seen(run, plan, marks),
        *_lines(run, plan),
        *tenures(run, plan, marks),
        *faults(run, plan, marks, hatch),
        *_marks(marks),
        *_flaws(run, plan),
        *_names(plan),
        *_labels(run, plan, marks, said),
    ]
    legend, bottom = _legend(plan, hatch, _kinds(run))
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
    for name, y in plan.heads:
        words = safe(shortened(f"job {name}", plan.format.width - 24, font))
        yield f'<text class="head" x="12" y="{y:g}">{words}<title>{safe(name)}</title></text>'
    for row in plan.rows.values():
        y = row.y + 4.5 if plan.format.names else row.y - plan.format.lane / 2 - 2
        words = safe(shortened(row.name, (plan.format.names or plan.format.width) - 12, font))
        own = f"name c c{plan.colour(row.name)}" if row.lane[0] == "worker" else "name"
        yield f'<text class="{own}" x="12" y="{y:g}">{words}<title>{safe(row.name)}</title></text>'


def _lines(run: Scenes, plan: Plan) -> Iterator[str]:
    refused = [mark for mark in run.marks if mark.kind == "refusal" and mark.lane[0] != "worker"]
    for mark in refused if len(refused) <= LINES else ():
        if mark.sent is not None:
            yield _line(plan, mark, mark.sent, "late")
    for flaw in run.flaws:
        if flaw.sent is not None:
            yield _line(plan, flaw, flaw.sent, "wrong")


def _line(plan: Plan, late: Mark | Flaw, sent: float, klass: str) -> str:
    begin, y = plan.row(("worker", late.worker, "")).y, plan.row(late.lane).y
    colour = plan.colour(late.worker)
    return f'<path class="{klass} c{colour}" d="M{plan.x(sent):.1f} {begin:g}L{plan.x(late.t):.1f} {y:g}"/>'


def _marks(marks: list[Drawn]) -> Iterator[str]:
    for each in marks:
        mark = each.mark
        words = f"{mark.worker}, generation {mark.generation}: {mark.words}" + (
            f", and {each.count - 1} more" if each.count > 1 else ""
        )
        shape = SHAPES[mark.kind]
        yield (
            f'<g class="m c{each.colour}" transform="translate({each.x:.1f} {each.y:g})">'
            f"{shape}<title>{safe(words)}</title></g>"
        )


def _flaws(run: Scenes, plan: Plan) -> Iterator[str]:
    for number, flaw in enumerate(run.flaws, 1):
        x, y = plan.x(flaw.t), plan.row(flaw.lane).y
        words = "; ".join(
            f"{name}: {sentence}" for name, sentence in zip(flaw.invariants, flaw.sentences, strict=True)
        )
        yield (
            f'<a href="#flaw-{number}"><g transform="translate({x:.1f} {y:g})">{SHAPES["flaw"]}'
            f"<title>{safe(words)}</title></g></a>"
        )


def _labels(run: Scenes, plan: Plan, marks: list[Drawn], said: str) -> Iterator[str]:
    """Write beside refusals and flaws what they are, where nothing else stands: the rest have tooltips."""
    taken: dict[float, list[tuple[float, float]]] = {}
    for each in marks:
        taken.setdefault(each.y, []).append((each.x - 7, each.x + 7))
    for tenure in run.tenures:
        bar = plan.x(tenure.begin), plan.x(tenure.end)
        taken.setdefault(plan.row(("lease", tenure.job, "")).y, []).append(bar)
    for flaw in run.flaws:
        taken.setdefault(plan.row(flaw.lane).y, []).append((plan.x(flaw.t) - 10, plan.x(flaw.t) + 10))
    wanted: list[tuple[float, float, str, tuple[str, ...]]] = [
        (each.x, each.y, f"note c c{each.colour}", ("refused", "no"))
        for each in marks
        if each.mark.kind == "refusal"
    ]
    wanted += [
        (plan.x(flaw.t), plan.row(flaw.lane).y, "note bad", (said,) if said else _said(flaw))
        for flaw in run.flaws
    ]
    size = plan.format.font - 1.5
    for x, y, klass, texts in wanted[:LABELS]:
        for words in texts:
            wide = width(words, size)
            places = (x + 14, x + 14 + wide), (x - 14 - wide, x - 14)
            free = [place for place in places if plan.left <= place[0] and place[1] <= plan.right]
            free = [place for place in free if not any(_touch(place, each) for each in taken[y])]
            if free:
                begin = free[0][0]
                yield f'<text class="{klass}" x="{begin:.1f}" y="{y + 4:g}">{safe(words)}</text>'
                taken[y].append(free[0])
                break


def _touch(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] < other[1] + 3 and other[0] < one[1] + 3


def _said(flaw: Flaw) -> tuple[str, ...]:
    return (flaw.sentences[0], " ".join(flaw.invariants), flaw.invariants[0])


def _kinds(run: Scenes) -> set[str]:
    found: set[str] = {mark.kind for mark in run.marks}
    found |= {"flaw" for _ in run.flaws} | {"fault" for _ in run.faults}
    return found


def _legend(plan: Plan, hatch: str, kinds: set[str]) -> tuple[list[str], float]:
    parts: list[str] = []
    x, y = 18.0, plan.bottom + 24
    for kind, words in LEGEND:
        if kind not in kinds:
            continue
        room = 14 + width(words, 12) + 16
        if x + room > plan.format.width and x > 18:
            x, y = 18.0, y + 20
        pause = f'<rect x="-6" y="-6" width="12" height="12" fill="url(#{hatch})"/>'
        shape = SHAPES.get(kind, pause)
        parts.append(f'<g class="m key" transform="translate({x:.1f} {y:g})">{shape}</g>')
        parts.append(f'<text class="tick" x="{x + 12:.1f}" y="{y + 4:g}">{words}</text>')
        x += room
    return parts, y + 16
