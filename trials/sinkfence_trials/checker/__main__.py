"""`python -m sinkfence_trials.checker FILE...` checks the files together, and prints what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from sinkfence_trials.checker import check
from sinkfence_trials.history import read


def main(paths: list[str]) -> int:
    """Return 1 if there is something."""
    violations = check(read(map(Path, paths)))
    for violation in violations:
        print(f"{violation.invariant} {violation.job}: {violation.sentence}\n  {violation.event.line()}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
