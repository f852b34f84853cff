"""The demo as one call: its servers, its story, what it says at the end, and its exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import psycopg
from rich.console import Console

from sinkfence_trials import timeline
from sinkfence_trials.checker import check
from sinkfence_trials.demo.narrator import Narrator
from sinkfence_trials.demo.places import JOB
from sinkfence_trials.demo.process import ProcessFailed
from sinkfence_trials.demo.stage import stage
from sinkfence_trials.demo.story import Story
from sinkfence_trials.demo.telling import Telling
from sinkfence_trials.servers.supervised import ServerError

AS_EXPECTED: Final = 0
NOT_AS_EXPECTED: Final = 1
NO_STAGE: Final = 3
INTERRUPTED: Final = 130

TITLE: Final = (
    "The job: bill {job}, at a rate that has just changed.\n"
    "Worker A is stopped with its effects under way, loses its lease to worker B,\n"
    "and goes on. {how}"
)
CHECKS: Final = "Each destination checks A's token."
CHECKS_NOT: Final = "No destination checks."
SAFE: Final = (
    "Each of worker A's late effects was refused where it arrived.\nAll that is there is worker B's."
)
DAMAGE: Final = (
    "Each of worker A's late effects was accepted: the customer is billed twice and\n"
    "charged twice, and worker B's document and result are overwritten."
)


def show(console: Console, *, fenced: bool = True, telling: Telling | None = None) -> int:
    """Tell the story on a console, and return the exit code; whatever happens, nothing stays behind.

    What happened is added to `telling`.

    Returns:
        0 if all was as it has to be: with the checks, the stale effects refused and nothing else; without
        them, the damage done. 1 if not: the failed checks are listed. 3 if a server could not be had, or
        was lost. 130 after Ctrl-C.
    """
    narrator = Narrator(console)
    try:
        with stage(narrator, fenced=fenced) as built:
            narrator.title(TITLE.format(job=JOB, how=CHECKS if fenced else CHECKS_NOT))
            verdict = Story(built, narrator, telling or Telling()).play()
        narrator.judge(verdict, *((SAFE, "bold green") if fenced else (DAMAGE, "bold red")))
    except ProcessFailed as failed:
        return complain(f"the story could not be told to its end: {failed}", NOT_AS_EXPECTED)
    except (ServerError, OSError, psycopg.OperationalError) as error:
        return complain(str(error), NO_STAGE)
    except KeyboardInterrupt:
        return complain("interrupted; nothing is left running", INTERRUPTED)
    return AS_EXPECTED if verdict.good else NOT_AS_EXPECTED


def draw(path: Path, telling: Telling, *, fenced: bool) -> None:
    """Write the page of a story."""
    events = telling.history()
    how = "with sinkfence" if fenced else "without checks"
    timeline.write(path, events, check(events), f"A paused worker comes back, {how}")


def complain(what: str, code: int) -> int:
    """Say on standard error why there is no verdict, and return the exit code."""
    print(f"sinkfence demo: {what}", file=sys.stderr)
    return code
