"""The command line put together: what is said of it as a whole, and its groups."""

import importlib.metadata
from typing import Annotated

# The commands print with it: its lack is told before they run.
import rich  # noqa: F401  # pyright: ignore[reportUnusedImport]
import typer

from sinkfence.cli import demo, doctor, leases, marks, schema, torture
from sinkfence.cli.exits import CODES
from sinkfence.cli.usage import Root


def app() -> typer.Typer:
    """Return the command line."""
    root = typer.Typer(
        cls=Root, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, epilog=CODES
    )
    root.callback()(sinkfence)
    root.command(epilog=CODES, short_help="See late writes refused, on real servers.")(demo.demo)
    root.add_typer(doctor.commands, name="doctor")
    root.add_typer(leases.commands, name="leases")
    root.add_typer(marks.commands, name="marks")
    root.add_typer(schema.commands, name="schema")
    root.add_typer(
        torture.commands,
        name="torture",
        short_help="Pause, kill and cut off workers; check what took effect.",
    )
    return root


def say_version(wanted: bool) -> None:
    """Say the version, and exit."""
    if wanted:
        typer.echo(f"sinkfence {importlib.metadata.version('sinkfence')}")
        raise typer.Exit


def sinkfence(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=say_version, help="Say which version this is."),
    ] = False,
) -> None:
    """Destinations that refuse a stale owner.

    A lease gives a job one owner at a time, and numbers the owners. A worker that was paused does not know
    that its lease has run out, and its delayed writes land over its successor's. With sinkfence a
    PostgreSQL database, an S3 bucket and an HTTP service each refuse, by themselves, whatever carries an
    older number than they have seen.

    \b
    Examples:
      sinkfence demo                   see it, on servers that are started for it
      sinkfence leases list            who holds what?
      sinkfence doctor postgres DSN    does this database refuse a stale owner?
    """
