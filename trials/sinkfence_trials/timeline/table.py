"""The same run in words: for those who can't see the picture or hover over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sinkfence_trials.timeline.scenes import Scenes
from sinkfence_trials.timeline.text import safe, seconds

MOST: Final = 300
"""Lines for what went well; flaws, refusals and faults have theirs in any case, like beside like as one."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    t: float
    worker: str
    job: str
    generation: int | None
    words: str
    told: bool
    """Whether it is told in any case."""
    klass: str = ""
    anchor: str = ""


def lines(run: Scenes) -> tuple[list[Line], int]:
    """Return the lines, in the order of time, and how many are left out."""
    found = [
        Line(each.begin, each.worker, each.job, each.generation, f"holds the job until it {_how(each.how)}"
             f" after {seconds(each.end - each.begin)}", False)
        for each in run.tenures
    ]  # fmt: skip
    for mark in run.marks:
        if mark.kind != "request":
            _, job, sink = mark.lane if mark.lane[0] != "worker" else ("", "", "")
            at = f" at {sink}" if sink else ""
            klass = mark.kind if mark.kind == "refusal" else ""
            found.append(Line(mark.t, mark.worker, job, mark.generation, mark.words + at, bool(klass), klass))
    for number, flaw in enumerate(run.flaws, 1):
        rule = ", ".join(flaw.invariants)
        words = f"{rule}: {'; '.join(flaw.sentences)}" + (f" at {flaw.lane[2]}" if flaw.lane[2] else "")
        found.append(
            Line(flaw.t, flaw.worker, flaw.lane[1], flaw.generation, words, True, "broken", f"flaw-{number}")
        )
    for fault in run.faults:
        span = "" if fault.end is None else f", for {seconds(fault.end - fault.begin)}"
        found.append(Line(fault.begin, fault.worker, "", None, fault.kind + span, True, "fault"))
    found.sort(key=lambda line: line.t)
    return _thinned(found)


def rows(found: list[Line], begin: float) -> str:
    """Return the lines as rows of an HTML table."""
    return "".join(
        f"<tr{_attribute('class', line.klass)}{_attribute('id', line.anchor)}><td>{line.t - begin:.3f}</td>"
        f"<td><bdi>{safe(line.worker)}</bdi></td><td><bdi>{safe(line.job)}</bdi></td>"
        f"<td>{'' if line.generation is None else line.generation}</td>"
        f"<td><bdi>{safe(line.words)}</bdi></td></tr>\n"
        for line in found
    )


def _how(how: str) -> str:
    return {"ran out": "runs out", "released": "is released", "completed": "is completed"}[how]


def _thinned(found: list[Line]) -> tuple[list[Line], int]:
    plain = sum(not line.told for line in found)
    step = max(1, -(-plain // MOST))
    kept: list[Line] = []
    seen = 0
    runs: dict[int, int] = {}
    for line in found:
        if line.told:
            before = kept[-1] if kept else None
            # Like after like is one line with a count: a refused worker may ask again ten thousand times.
            if before is not None and _like(before) == _like(line) and line.klass == "refusal":
                runs[len(kept) - 1] = runs.get(len(kept) - 1, 1) + 1
            else:
                kept.append(line)
        else:
            if seen % step == 0:
                kept.append(line)
            seen += 1
    for index, count in runs.items():
        line = kept[index]
        kept[index] = Line(
            line.t, line.worker, line.job, line.generation, f"{line.words} ({count} times)", True, line.klass
        )
    return kept, plain - sum(not line.told for line in kept)


def _like(line: Line) -> tuple[object, ...]:
    return line.worker, line.job, line.generation, line.words, line.klass


def _attribute(name: str, value: str) -> str:
    return f' {name}="{value}"' if value else ""
