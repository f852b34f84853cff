"""A benchmark as a picture: each race's ratios, the median on its quartiles, and the goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape

from bench.race import CONTROL, Result
from bench.report import shown

LEFT, WIDTH, RIGHT = 212, 330, 58
"""Pixels for the names, for the ratios, and for what is written behind them."""
ROW, TITLE, GAP = 19, 38, 14
LIGHT = "--ink:#1c1e21;--faint:#5b6470;--line:#c9cfd8;--paper:#fff;--ours:#1a5fb4;--goal:#cf0f2b"
DARK = "--ink:#e9ebee;--faint:#a3adb9;--line:#444b55;--paper:#15171b;--ours:#6aa8ff;--goal:#ff5a6e"
STYLE = f"""\
:root{{{LIGHT};color-scheme:light dark}}@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}
text{{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif;fill:var(--ink)}}
.title{{font-weight:600}}.value{{fill:var(--faint);font-size:11px}}.paper{{fill:var(--paper)}}
.one{{stroke:var(--line)}}.goal{{stroke:var(--goal);stroke-width:2}}.dot{{fill:var(--faint)}}
.spread{{stroke:var(--faint);stroke-width:5;stroke-linecap:round;opacity:.45}}
.ours .spread{{stroke:var(--ours)}}.ours .dot{{fill:var(--ours)}}"""


def draw(races: list[Result], about: str) -> str:
    """Return the picture as SVG."""
    parts, top = [], float(GAP)
    for race in races:
        parts += _race(race, top)
        top += TITLE + ROW * len(race.standings) + GAP
    width = LEFT + WIDTH + RIGHT
    size = f'viewBox="0 0 {width} {top:g}" width="{width}" height="{top:g}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(about)}">'
        f"<style>{STYLE}</style>"
        f'<rect class="paper" width="{width}" height="{top:g}"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _race(race: Result, top: float) -> Iterator[str]:
    place = _scale(race)
    about = f"{race.unit}, ratio to {race.baseline}, {race.better} is good"
    yield f'<text class="title" x="8" y="{top + 12:g}">{escape(race.title)}</text>'
    yield f'<text class="value" x="8" y="{top + 28:g}">{escape(about)}</text>'
    bottom = top + TITLE + ROW * len(race.standings)
    yield f'<path class="one" d="M{place(1):.1f} {top + TITLE:g}V{bottom:g}"/>'
    for number, standing in enumerate(race.standings):
        middle = top + TITLE + ROW * (number + 0.5)
        low, high = map(place, standing.quartiles)
        goal = ""
        if standing.goal is not None:
            at = place(standing.goal.bound)
            goal = f'<path class="goal" d="M{at:.1f} {middle - 8:g}v16"/>'
        yield (
            f'<g class="{"theirs" if standing.name in (CONTROL, race.baseline) else "ours"}">'
            f'<text x="{LEFT - 10}" y="{middle + 4:g}" text-anchor="end">{escape(standing.name)}</text>'
            f'<path class="spread" d="M{low:.1f} {middle:g}H{high + 0.1:.1f}"/>{goal}'
            f'<circle class="dot" cx="{place(standing.ratio):.1f}" cy="{middle:g}" r="3.5"/>'
            f'<text class="value" x="{LEFT + WIDTH + 8}" y="{middle + 4:g}">{shown(standing.ratio)}</text>'
            "</g>"
        )


def _scale(race: Result) -> Callable[[float], float]:
    """Where a ratio is drawn: by its logarithm, so that half and twice are equally far from one."""
    seen = [1.0]
    for standing in race.standings:
        seen += [*standing.quartiles, *([standing.goal.bound] if standing.goal else [])]
    low, high = math.log(min(seen)) - 0.02, math.log(max(seen)) + 0.02
    return lambda ratio: LEFT + WIDTH * (math.log(ratio) - low) / (high - low)
