"""The exit codes, the same for every command, and how a command ends early."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

FINE: Final = 0
REFUSED: Final = 1
"""Something was found, or was not as it has to be, or the answer was no."""
USAGE: Final = 2
"""A wrong usage, and what was not confirmed."""
MISSING: Final = 3
"""Something has to be installed or started first, or could not be reached."""
INTERRUPTED: Final = 130
"""After Ctrl-C, as a shell has it."""
TERMINATED: Final = 143
"""After SIGTERM, as a shell has it."""


def missing(names: Sequence[str], extra: str) -> NoReturn:
    """Say what to install, and exit."""
    are = "is" if len(names) == 1 else "are"
    print(
        f"sinkfence: {', '.join(names)} {are} not installed: pip install 'sinkfence[{extra}]'",
        file=sys.stderr,
    )
    sys.exit(MISSING)


def need(names: Sequence[str], extra: str) -> None:
    """Do nothing if these packages are there; else name all that are not, and exit."""
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    if lacking:
        missing(lacking, extra)
