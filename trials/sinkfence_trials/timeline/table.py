"""The same run in words: for those who can't see the picture or hover over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from sinkfence_trials.timeline.run import Fault, Hold, Moment, Run
from sinkfence_trials.timeline.text import safe, seconds

FLAWS: Final = 100
"""Lines for what broke a rule: the first."""
MOST: Final = 200
"""Lines for refusals and faults, and for what went well: as many of each, spread over the run."""

HOW: Final = {
    "ran out": "until the lease runs out",
    "released": "and releases it",
    "completed": "and completes it",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    t: float
    worker: str
    job: str
    generation: int | None
    words: str
    klass: str = ""
    anchor: str = ""


def lines(run: Run) -> tuple[list[Line], list[str]]:
    """Return the lines, in the order of time, and what is left out."""
    broken = [_moment(flaw, "broken") for flaw in run.of("flaw")]
    listed = [replace(line, anchor=f"flaw-{number}") for number, line in enumerate(broken[:FLAWS], 1)]
    told = [_moment(refusal, "refusal") for refusal in run.of("refusal")] + [
        _fault(each) for each in run.faults
    ]
    told.sort(key=attrgetter("t"))
    well = [_moment(each) for each in run.moments if each.kind in ("effect", "unknown")]
    well += [_hold(each) for each in run.holds]
    well.sort(key=attrgetter("t"))
    told = list(_once(told))
    groups = (
        (broken, listed, "broken rules"),
        (told, _spread(told), "refusals and faults"),
        (well, _spread(well), "that went well"),
    )
    kept = [line for _, some, _ in groups for line in some]
    left_out = [f"{len(every) - len(some)} {what}" for every, some, what in groups if len(every) > len(some)]
    return sorted(kept, key=attrgetter("t")), left_out


def rows(found: list[Line], begin: float) -> str:
    """Return the lines as rows of an HTML table."""
    return "".join(
        f"<tr{_attribute('class', line.klass)}{_attribute('id', line.anchor)}><td>{line.t - begin:.3f}</td>"
        f"<td><bdi>{safe(line.worker)}</bdi></td><td><bdi>{safe(line.job)}</bdi></td>"
        f"<td>{'' if line.generation is None else line.generation}</td>"
        f"<td><bdi>{safe(line.words)}</bdi></td></tr>\n"
        for line in found
    )


def _moment(moment: Moment, klass: str = "") -> Line:
    job = "" if moment.lane.of == "worker" else moment.lane.name
    return Line(moment.t, moment.worker, job, moment.generation, moment.words + moment.where, klass)


def _hold(hold: Hold) -> Line:
    words = f"holds the job for {seconds(hold.end - hold.begin)}, {HOW[hold.how]}"
    return Line(hold.begin, hold.worker, hold.job, hold.generation, words)


def _fault(fault: Fault) -> Line:
    span = "" if fault.end is None else f", for {seconds(fault.end - fault.begin)}"
    return Line(fault.begin, fault.worker, "", None, fault.kind + span, "fault")


def _once(told: list[Line]) -> Iterator[Line]:
    """Make like after like one line with a count: a refused worker may ask again ten thousand times."""
    first, count = None, 0
    for line in [*told, None]:
        if first is not None and line is not None and replace(line, t=first.t) == first:
            count += 1
            continue
        if first is not None:
            yield replace(first, words=f"{first.words} ({count} times)") if count > 1 else first
        first, count = line, 1


def _spread(every: list[Line]) -> list[Line]:
    return every[:: max(1, -(-len(every) // MOST))]


def _attribute(name: str, value: str) -> str:
    return f' {name}="{value}"' if value else ""
