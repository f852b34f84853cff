"""The command line: `sinkfence demo`, and what else is run by hand.

Each group of commands has a file of its own; this one loads none of them before it is called, so that
without the extra there is one line and no traceback.
"""

import logging
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkfence.cli.exits import FINE, INTERRUPTED, TERMINATED, missing
from sinkfence.cli.mistakes import told
from sinkfence.cli.streams import flushed, say, spell_out, stand_in

if TYPE_CHECKING:
    import typer

__all__ = ["main", "make_app"]


def main() -> None:
    """Run the command line, and exit."""
    stand_in()
    # As Ctrl-C does: with what the command has started or opened cleared away first.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code; what is the user's to mend is said in a line."""
    code = FINE
    try:
        try:
            app = make_app()
        except ModuleNotFoundError as error:
            missing([(error.name or "a module").partition(".")[0]], "cli")
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
        spell_out()
        app(list(arguments), prog_name="sinkfence")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FINE
    except KeyboardInterrupt:
        say("sinkfence: interrupted")
        code = INTERRUPTED
    except Exception as error:
        mistake = told(error)
        if mistake is None:
            raise
        say(f"sinkfence: {mistake}")
        code = mistake.code
    return flushed(code)


def make_app() -> "typer.Typer":
    """Return the command line.

    Raises:
        ModuleNotFoundError: the extra `cli` is not installed.
    """
    from sinkfence.cli.app import app

    return app()
