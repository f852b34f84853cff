"""The command line: `sinkfence demo`, and what else is run by hand.

Each group of commands has a file of its own; this one loads none of them before it is called, so that
without the extra there is one line and no traceback.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkfence.cli.exits import TERMINATED, missing

if TYPE_CHECKING:
    import typer

__all__ = ["main", "make_app"]


def main() -> None:
    """Run the command line, and exit."""
    _stand_in()
    # As Ctrl-C does: with what the command has started or opened cleared away first.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    sys.exit(run(sys.argv[1:]))


def _stand_in() -> None:
    """Put something in the place of streams that are closed: else the next file or socket takes their number.

    What is written to a closed standard output then fails, as it has to; a closed standard error is silence.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)  # the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code; what is the user's to mend is said in a line."""
    try:
        app = make_app()
    except ModuleNotFoundError as error:
        missing([(error.name or "a module").partition(".")[0]], "cli")
    from sinkfence.cli.mistakes import heard

    return heard(app, arguments)


def make_app() -> "typer.Typer":
    """Return the command line.

    Raises:
        ModuleNotFoundError: the extra `cli` is not installed.
    """
    from sinkfence.cli.app import app

    return app()
