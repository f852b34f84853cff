"""A run of the torture as one call: its servers, what it says as it goes, its verdict and exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sinkfence.demo.process import ProcessFailed
from sinkfence.demo.servers.supervised import ServerError
from sinkfence.torture.places import Bucket, places
from sinkfence.torture.run import Run
from sinkfence.torture.sometimes import Sometimes
from sinkfence.torture.trial import Trial
from sinkfence.torture.verdict import BROKEN, judge

NO_PLACE: Final = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for."""

    seconds: float
    seed: int
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
        with places(postgres_dsn=wanted.postgres, bucket=wanted.bucket, service=wanted.service) as there:
            folder = wanted.into or Path(there.run)
            if folder.exists() and any(folder.iterdir()):
                raise ValueError(f"{folder} is there already, and not empty")
            folder.mkdir(parents=True, exist_ok=True)
            say(f"kept in {folder}")
            trial = Trial(
                Run(folder, wanted.seed, there), wanted.seconds, wanted.sabotage, wanted.server_faults
            )
            trial.play(lambda gone, sometimes: say(progress(gone, sometimes)))
    except ProcessFailed as failed:
        return complain(str(failed), BROKEN)
    except ServerError as error:
        return complain(str(error), NO_PLACE)
    verdict = judge(folder)
    for line in verdict.lines():
        say(line)
    say(f"check it again: sinkfence torture check {folder}")
    return verdict.code


def progress(gone: float, sometimes: Sometimes) -> str:
    """Return the line of one second."""
    return f"{gone:6.1f} s  {sometimes}"


def complain(what: str, code: int) -> int:
    """Say on standard error why there is no verdict, and return the exit code."""
    print(f"sinkfence torture: {what}", file=sys.stderr)
    return code
