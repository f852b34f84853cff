"""A run as one HTML page: the verdict, the picture, and the same in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sinkfence_trials.checker import Violation
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.picture import picture
from sinkfence_trials.timeline.plan import NARROW, WIDE
from sinkfence_trials.timeline.scenes import Scenes, scenes
from sinkfence_trials.timeline.style import COLOURS, PICTURE
from sinkfence_trials.timeline.table import lines, rows
from sinkfence_trials.timeline.text import safe, seconds

_LOOK: Final = (
    "body{margin:0 auto;max-width:1060px;padding:16px;overflow-wrap:anywhere;"
    "background:var(--paper);color:var(--ink);"
    "font:16px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}"
    "h1{font-size:1.5rem;line-height:1.2;margin:.3rem 0 .5rem;overflow-wrap:anywhere}h2{font-size:1.1rem}"
    ".verdict{border-left:5px solid var(--c2);padding:.3rem .8rem;margin:.6rem 0 1.2rem}"
    ".verdict.wrong{border-color:var(--bad);opacity:1}"
    ".verdict ul{margin:.3rem 0;padding-left:1.1rem}"
    ".timeline{display:block;width:100%;height:auto}.narrow{display:none}"
    ".rows{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.85rem}"
    "td,th{text-align:left;padding:.2rem .6rem .2rem 0;border-bottom:1px solid var(--line);"
    "vertical-align:top;"
    "overflow-wrap:anywhere}th{white-space:nowrap}td:nth-child(2),td:nth-child(3){min-width:5em}"
    "td:first-child{font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".broken td{color:var(--bad);font-weight:600}.refusal td{font-weight:600}"
    "tr:target{outline:2px solid var(--bad)}"
    "a{color:inherit}.faint-note{color:var(--faint)}"
    "@media screen and (max-width:700px){.wide{display:none}.narrow{display:block}body{padding:12px}"
    "thead{display:none}tr{display:block;border-bottom:1px solid var(--line);padding:.3rem 0}"
    "td,td:nth-child(n){display:inline;border:0;min-width:0}td:last-child{display:block}}"
    "@media print{@page{size:A4 landscape;margin:12mm}body{padding:0;max-width:none}"
    "svg,tr{break-inside:avoid}"
    "thead{display:table-header-group}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}"
)

LISTED: Final = 12
"""Flaws that the verdict lists; the table has all of them."""


def page(events: Iterable[Event], violations: Sequence[Violation], title: str) -> str:
    """Return the page: one file that needs no other, no script and no network.

    The history's events in any order; the violations as the checker found them.
    """
    run = scenes(events, violations)
    said = summary(run)
    drawn = "".join(
        picture(run, format).svg(f"Timeline: {said} The table below tells the same in words.", format.name)
        for format in (WIDE, NARROW)
    )
    found, left_out = lines(run)
    more = f'<p class="faint-note">{left_out} more that went well are in the history.</p>' if left_out else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{safe(title)}</title><style>{COLOURS}{PICTURE}{_LOOK}</style></head>\n"
        f'<body><h1>{safe(title)}</h1>\n{_verdict(run, said)}\n<figure style="margin:0">{drawn}</figure>\n'
        '<h2 id="events">What happened</h2><div class="rows"><table><thead><tr><th>seconds</th><th>who</th>'
        "<th>job</th><th>generation</th><th>what</th></tr></thead><tbody>\n"
        f"{rows(found, run.begin)}</tbody></table></div>{more}</body></html>\n"
    )


def summary(run: Scenes) -> str:
    """Return the run in a sentence."""
    effects = sum(mark.kind == "effect" for mark in run.marks)
    refusals = sum(mark.kind == "refusal" for mark in run.marks)
    parts = (
        _count(len(run.jobs), "job"),
        _count(len(run.workers), "worker"),
        _count(len(run.tenures), "generation"),
        _count(effects, "effect"),
        _count(refusals, "refusal"),
        _count(len(run.faults), "fault"),
    )
    return f"{', '.join(parts)} in {seconds(run.end - run.begin)}."


def _verdict(run: Scenes, said: str) -> str:
    if not run.flaws:
        return f'<div class="verdict"><strong>No rule was broken.</strong> {safe(said)}</div>'
    listed = "".join(
        f'<li><a href="#flaw-{number}">{safe(", ".join(flaw.invariants))}</a> '
        f"<bdi>{safe(flaw.lane[1])}</bdi>: <bdi>{safe(flaw.sentences[0])}</bdi></li>"
        for number, flaw in enumerate(run.flaws[:LISTED], 1)
    )
    more = f"<li>and {len(run.flaws) - LISTED} more</li>" if len(run.flaws) > LISTED else ""
    broken = sum(len(flaw.invariants) for flaw in run.flaws)
    return (
        f'<div class="verdict wrong"><strong>Rules were broken: {_count(broken, "time")}.</strong> '
        f"{safe(said)}<ul>{listed}{more}</ul></div>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
