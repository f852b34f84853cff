"""The command line: `sinkfence demo`, and what else is run by hand.

Each group of commands has a file of its own; this one loads none of them before it is called, so that
without the extra there is one line and no traceback.
"""

from typing import TYPE_CHECKING

from sinkfence.cli.exits import missing

if TYPE_CHECKING:
    import typer

__all__ = ["main", "make_app"]


def main() -> None:
    """Run the command line, and exit."""
    try:
        app = make_app()
    except ModuleNotFoundError as error:
        missing([(error.name or "a module").partition(".")[0]], "cli")
    app()


def make_app() -> "typer.Typer":
    """Return the command line.

    Raises:
        ModuleNotFoundError: the extra `cli` is not installed.
    """
    from sinkfence.cli.app import app

    return app()
