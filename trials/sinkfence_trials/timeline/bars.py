"""What has a length in the picture: tenures, faults, and since when a destination has seen a generation."""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.timeline.plan import Plan
from sinkfence_trials.timeline.scenes import Scenes
from sinkfence_trials.timeline.text import fitting, safe, seconds, width
from sinkfence_trials.timeline.thinning import Drawn

LEAST = 1.0
"""Bars that are narrower are drawn as wide as this, and one where many would lie on one another."""


def tenures(run: Scenes, plan: Plan, marks: list[Drawn]) -> Iterator[str]:
    """Draw a bar for each generation of each job, on the lane of the store."""
    at: dict[float, float] = {}
    for tenure in sorted(run.tenures, key=lambda each: each.begin):
        row, begin = plan.row(("lease", tenure.job, "")), plan.x(tenure.begin)
        length = max(plan.x(tenure.end) - begin, LEAST)
        if begin + length <= at.get(row.y, float("-inf")) + LEAST / 2:
            continue
        at[row.y] = begin + length
        number, font = tenure.generation, plan.format.font - 1
        texts = (f"generation {number}: {tenure.worker}", f"generation {number}", f"{number}")
        words = fitting(texts, length - 8, font)
        told = f"{texts[0]}, for {seconds(tenure.end - tenure.begin)}, {tenure.how}"
        half = plan.format.lane / 2 - 4
        yield (
            f'<g class="c{plan.colour(tenure.worker)}">'
            f'<rect class="bar" x="{begin:.1f}" y="{row.y - half:g}" width="{length:.1f}" '
            f'height="{half * 2:g}"/><title>{safe(told)}</title></g>'
        )
        in_the_way = (each for each in marks if each.y == row.y)
        if words and not any(-6 < each.x - begin < width(words, font) + 12 for each in in_the_way):
            yield f'<text class="in" x="{begin + 6:.1f}" y="{row.y + 4.5:g}">{safe(words)}</text>'


def faults(run: Scenes, plan: Plan, marks: list[Drawn], hatch: str) -> Iterator[str]:
    """Hatch each fault on the lane of the worker that it befell; what has no length is a stroke."""
    written: dict[float, float] = {}
    for fault in run.faults:
        row, begin = plan.row(("worker", fault.worker, "")), plan.x(fault.begin)
        half = plan.format.lane / 2 - 5
        if fault.end is None:
            told, room, end = f"{fault.worker}: {fault.kind}", 60.0, begin + 2
            shape = f'<path class="stroke" d="M{begin:.1f} {row.y - half:g}v{half * 2:g}"/>'
        else:
            span = seconds(fault.end - fault.begin)
            end = plan.x(fault.end)
            told, room = f"{fault.worker}: {fault.kind}, {span}", end - begin - 8
            shape = (
                f'<rect fill="url(#{hatch})" class="fault" x="{begin:.1f}" y="{row.y - half:g}" '
                f'width="{max(end - begin, LEAST):.1f}" height="{half * 2:g}"/>'
            )
        yield f"<g>{shape}<title>{safe(told)}</title></g>"
        size = plan.format.font - 1
        words = fitting((told.removeprefix(f"{fault.worker}: "), fault.kind), room, size)
        if words and fault.end is not None and begin >= written.get(row.y, float("-inf")):
            middle, wide = (begin + end) / 2, width(words, size)
            if any(each.y == row.y and abs(each.x - middle) < wide / 2 + 10 for each in marks):
                continue
            written[row.y] = end
            yield (
                f'<rect class="plate" x="{middle - wide / 2 - 4:.1f}" y="{row.y - 8:g}" '
                f'width="{wide + 8:.1f}" height="16"/>'
                f'<text class="in" x="{middle:.1f}" y="{row.y + 4.5:g}" text-anchor="middle">'
                f"{safe(words)}</text>"
            )


def seen(run: Scenes, plan: Plan, marks: list[Drawn]) -> Iterator[str]:
    """Tint each destination's lane in the colour of the newest owner that has armed it."""
    lanes: dict[object, list[tuple[float, int, int]]] = {}
    for armed in sorted(run.armed, key=lambda each: each.t):
        steps = lanes.setdefault(armed.lane, [])
        if not steps or armed.generation > steps[-1][1]:
            x = plan.x(armed.t)
            if steps and x - steps[-1][0] < LEAST:
                steps.pop()
            steps.append((x, armed.generation, plan.colour(armed.worker)))
    for lane, steps in lanes.items():
        row = plan.row(lane)  # type: ignore[arg-type]
        half = plan.format.lane / 2 - 2
        for (begin, generation, colour), end in zip(
            steps, [x for x, _, _ in steps[1:]] + [plan.right], strict=True
        ):
            yield (
                f'<g class="c{colour}"><rect class="seen" x="{begin:.1f}" y="{row.y - half:g}" '
                f'width="{end - begin:.1f}" height="{half * 2:g}"/>'
                f"<title>has seen generation {generation}</title></g>"
            )
            size = plan.format.font - 2.5
            nearest = min([each.x - 8 for each in marks if each.y == row.y and each.x >= begin - 8] + [end])
            if words := fitting((f"has seen {generation}",), nearest - begin - 8, size):
                yield f'<text class="faint" x="{begin + 6:.1f}" y="{row.y + 4:g}">{words}</text>'
