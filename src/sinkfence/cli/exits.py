"""The exit codes, the same for every command, and how a command ends for want of a package."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

FINE: Final = 0
REFUSED: Final = 1
"""Something was found, is not there, or is not as it has to be; or the answer was no."""
USAGE: Final = 2
"""A wrong usage; also a change that nobody was there to confirm."""
MISSING: Final = 3
"""Something has to be installed, started or mended first, or could not be reached."""
INTERRUPTED: Final = 130
"""After Ctrl-C, as a shell has it."""
TERMINATED: Final = 143
"""After SIGTERM, as a shell has it."""

CODES: Final = """\b
Exit codes, of every command:
  0         fine
  1         refused, not found, not as it should be, or answered no
  2         wrong usage, or a change that nobody has confirmed
  3         something is missing, broken or out of reach
  130, 143  ended by Ctrl-C, by SIGTERM
"""


def missing(names: Sequence[str], extra: str) -> NoReturn:
    """Say what to install, and exit."""
    are = "is" if len(names) == 1 else "are"
    what = ", ".join(names)
    print(f"sinkfence: {what} {are} not installed: pip install 'sinkfence[{extra}]'", file=sys.stderr)
    sys.exit(MISSING)


def need(names: Sequence[str], extra: str) -> None:
    """Do nothing if these packages are there; else name all that are not, and exit."""
    lacking = [name for name in names if importlib.util.find_spec(name) is None]
    if lacking:
        missing(lacking, extra)
