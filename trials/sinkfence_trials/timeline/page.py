"""A run as one HTML page: the verdict, the picture, and the same in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sinkfence_trials.checker import Violation
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.picture import picture
from sinkfence_trials.timeline.plan import NARROW, WIDE
from sinkfence_trials.timeline.reading import read
from sinkfence_trials.timeline.run import Run
from sinkfence_trials.timeline.style import COLOURS_CSS, PAGE_CSS, PICTURE_CSS
from sinkfence_trials.timeline.table import FLAWS, lines, rows
from sinkfence_trials.timeline.text import safe, seconds

LISTED: Final = 12
"""Flaws that the verdict lists."""


def page(events: Iterable[Event], violations: Sequence[Violation], title: str) -> str:
    """Return the page: one file that needs no other, no script and no network, of bounded size.

    The history's events in any order; the violations as the checker found them.
    """
    run = read(events, violations)
    said = summary(run)
    describe = f"Timeline: {said} The table below tells the same in words."
    drawn = "".join(picture(run, format, links=FLAWS).svg(describe, format.name) for format in (WIDE, NARROW))
    found, left_out = lines(run)
    note = f'<p class="note">Left out here: {", ".join(left_out)}. The history has all of it.</p>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{safe(title)}</title><style>{COLOURS_CSS}{PICTURE_CSS}{PAGE_CSS}</style></head>\n"
        f"<body><h1>{safe(title)}</h1>\n{_verdict(run, said)}\n<figure>{drawn}</figure>\n"
        f'<h2 id="events">What happened</h2>{note if left_out else ""}<div class="rows"><table><thead><tr>'
        "<th>seconds</th><th>who</th><th>job</th><th>generation</th><th>what</th></tr></thead><tbody>\n"
        f"{rows(found, run.begin)}</tbody></table></div></body></html>\n"
    )


def summary(run: Run) -> str:
    """Return the run in a sentence."""
    parts = (
        _count(len(run.jobs), "job"),
        _count(len(run.workers), "worker"),
        _count(len(run.holds), "generation"),
        _count(len(run.of("effect")), "effect"),
        _count(len(run.of("refusal")), "refusal"),
        _count(len(run.faults), "fault"),
    )
    return f"{', '.join(parts)} in {seconds(run.end - run.begin)}."


def _verdict(run: Run, said: str) -> str:
    flaws = run.of("flaw")
    if not flaws:
        return f'<div class="verdict"><strong>No rule was broken.</strong> {safe(said)}</div>'
    listed = "".join(
        f'<li><a href="#flaw-{number}"><bdi>{safe(flaw.lane.name + flaw.where)}</bdi></a>: '
        f"<bdi>{safe(flaw.words)}</bdi></li>"
        for number, flaw in enumerate(flaws[:LISTED], 1)
    )
    more = f"<li>and {len(flaws) - LISTED} more</li>" if len(flaws) > LISTED else ""
    broken = sum(len(flaw.rules) for flaw in flaws)
    return (
        f'<div class="verdict wrong"><strong>Rules were broken: {_count(broken, "time")}.</strong> '
        f"{safe(said)}<ul>{listed}{more}</ul></div>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
