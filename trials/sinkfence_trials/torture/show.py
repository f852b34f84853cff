"""The torture as one call, a run or named scenarios: servers, what is said as it goes, the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sinkfence_trials.demo.process import ProcessFailed
from sinkfence_trials.servers.supervised import ServerError
from sinkfence_trials.torture.nursery import Nursery
from sinkfence_trials.torture.places import Bucket, places
from sinkfence_trials.torture.run import Run
from sinkfence_trials.torture.scenarios import SCENARIOS, perform
from sinkfence_trials.torture.sometimes import Sometimes
from sinkfence_trials.torture.trial import Trial
from sinkfence_trials.torture.verdict import BROKEN, FINE, INCONCLUSIVE, judge

NO_PLACE: Final = 3

CODES: Final = {
    "passed": FINE,
    "not run": FINE,
    "inconclusive": INCONCLUSIVE,
    "violated": BROKEN,
    "failed": BROKEN,
}
"""What is said of a scenario, as an exit code."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for."""

    seconds: float = 25.0
    seed: int = 0
    into: Path | None = None
    sabotage: str | None = None
    server_faults: bool = True
    postgres: str | None = None
    bucket: Bucket | None = None
    service: str | None = None


def torture(wanted: Wanted, say: Say) -> int:
    """Play a run, say what came of it, and return the exit code. The folder is kept, whatever happens.

    Raises:
        ValueError: the folder is there already, or an address leads nowhere.
    """
    say(f"seed {wanted.seed}: the same seed is the same schedule of faults, and not the same run")
    try:
        with kept(wanted, say) as run:
            trial = Trial(run, wanted.seconds, wanted.sabotage, wanted.server_faults)
            trial.play(lambda gone, sometimes: say(progress(gone, sometimes)))
    except (ProcessFailed, ServerError) as error:
        return complain(error)
    verdict = judge(run.folder)
    for line in verdict.lines():
        say(line)
    say(f"see it: {verdict.draw(run.folder)}")
    say(f"check it again: sinkfence torture check {run.folder}")
    return verdict.code


def play(names: Sequence[str], wanted: Wanted, say: Say) -> int:
    """Play scenarios one after the other, say what became of each, and return the exit code.

    1 if something was violated, else 4 if something is inconclusive, else 0. What cannot run here is said to
    be not run. The folder is kept, whatever happens.

    Raises:
        ValueError: the folder is there already, or an address leads nowhere.
    """
    codes: set[int] = set()
    width = max(map(len, names))
    try:
        with kept(wanted, say) as run:
            for name in names:
                began = time.monotonic()
                verdict = perform(name, SCENARIOS[name], run)
                codes.add(CODES[verdict.word])
                took = time.monotonic() - began
                say(f"{name:{width}}  {verdict.word:12}  {took:5.1f} s  {verdict.why}".rstrip())
    except ServerError as error:
        return complain(error)
    return BROKEN if BROKEN in codes else max(codes)


def listed() -> Iterator[str]:
    """Yield a line for each scenario."""
    width = max(map(len, SCENARIOS))
    for name, scenario in SCENARIOS.items():
        yield f"{name:{width}}  {scenario.sentence}"


@contextmanager
def kept(wanted: Wanted, say: Say) -> Generator[Run]:
    """Start the servers that are wanted, and make the folder.

    Raises:
        ValueError: the folder is there already, or an address leads nowhere.
    """
    there = places(postgres_dsn=wanted.postgres, bucket=wanted.bucket, service=wanted.service)
    with there as opened, closing(Nursery()) as nursery:
        folder = wanted.into or Path(opened.run)
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is there already, and not empty")
        folder.mkdir(parents=True, exist_ok=True)
        say(f"kept in {folder}")
        yield Run(folder, wanted.seed, opened, nursery)


def progress(gone: float, sometimes: Sometimes) -> str:
    """Return the line of one second."""
    return f"{gone:6.1f} s  {sometimes}"


def complain(error: ProcessFailed | ServerError) -> int:
    """Say on standard error why there is no verdict, and return the exit code."""
    print(f"sinkfence torture: {error}", file=sys.stderr)
    return NO_PLACE if isinstance(error, ServerError) else INCONCLUSIVE
