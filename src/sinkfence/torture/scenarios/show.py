"""Scenarios as one call: their servers, what is said of each, and the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from sinkfence.demo.servers.supervised import ServerError
from sinkfence.torture.places import Bucket, places
from sinkfence.torture.run import Run
from sinkfence.torture.scenarios import SCENARIOS, perform

CODES: Final = {"passed": 0, "not run": 0, "inconclusive": 4, "violated": 1, "failed": 1}
NO_PLACE: Final = 3

Say = Callable[[str], None]


def listed() -> Iterator[str]:
    """Yield a line for each scenario."""
    width = max(map(len, SCENARIOS))
    for name, scenario in SCENARIOS.items():
        yield f"{name:{width}}  {scenario.sentence}"


def play(
    names: Sequence[str], into: Path | None, postgres: str | None, bucket: Bucket | None, say: Say
) -> int:
    """Play scenarios one after the other, say what became of each, and return the exit code.

    1 if something was violated, else 4 if something is inconclusive, else 0. What cannot run here is said to
    be not run. The folder is kept, whatever happens.

    Raises:
        ValueError: the folder is there already, or an address leads nowhere.
    """
    codes: set[int] = set()
    width = max(map(len, names))
    try:
        with places(postgres_dsn=postgres, bucket=bucket) as there:
            folder = into or Path(there.run)
            if folder.exists() and any(folder.iterdir()):
                raise ValueError(f"{folder} is there already, and not empty")
            folder.mkdir(parents=True, exist_ok=True)
            say(f"kept in {folder}")
            for name in names:
                began = time.monotonic()
                verdict = perform(name, SCENARIOS[name], Run(folder, 0, there))
                codes.add(CODES[verdict.word])
                took = time.monotonic() - began
                say(f"{name:{width}}  {verdict.word:12}  {took:5.1f} s  {verdict.why}".rstrip())
    except ServerError as error:
        print(f"sinkfence torture: {error}", file=sys.stderr)
        return NO_PLACE
    return 1 if 1 in codes else max(codes)
