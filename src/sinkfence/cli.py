"""The command line: `sinkfence demo`, and what else is run by hand."""

import importlib.metadata
import importlib.util
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

if TYPE_CHECKING:
    import typer

MISSING: Final = 3
"""Exit code where something has to be installed first (2 is a wrong usage)."""
TERMINATED: Final = 143
"""Exit code after SIGTERM, as a shell has it."""

DEMO_NEEDS: Final = (
    "psycopg",
    "sqlalchemy",
    "boto3",
    "requests",
    "jwt",
    "cryptography",
    "starlette",
    "uvicorn",
)


def main() -> None:
    """Run the command line, and exit."""
    try:
        app = make_app()
    except ModuleNotFoundError as error:
        missing((error.name or "a module").partition(".")[0], "cli")
    app()


def make_app() -> "typer.Typer":
    """Return the command line. Made on call, so that without its extra there is one line and no traceback."""
    import rich.console
    import typer

    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )

    def say_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"sinkfence {importlib.metadata.version('sinkfence')}")
            raise typer.Exit

    version = typer.Option(
        "--version", is_eager=True, callback=say_version, help="Say which version this is."
    )

    @app.callback()
    def sinkfence(_: Annotated[bool, version] = False) -> None:
        """Destinations that refuse a stale owner.

        A paused worker does not know that it has lost its lease, and its delayed writes can land after the
        new owner's. With sinkfence a PostgreSQL database, an S3 bucket and an HTTP service each refuse, by
        themselves, whatever carries an older number than they have seen.
        """

    @app.command()
    def demo(
        unfenced: Annotated[
            bool, typer.Option("--unfenced", help="Play it without the checks, and see the damage.")
        ] = False,
    ) -> None:
        """See late effects refused, on real servers of its own (about 10 s).

        Worker A takes a job as generation 7 and is stopped (SIGSTOP) with a transaction open, an upload
        begun and a request on the wire. Its lease runs out; worker B takes the job as generation 8 and does
        the work. Then worker A is continued, and its COMMIT, its upload, its request and its completion
        arrive late.

        \b
        Exit code:
          0  all was as it has to be: each late effect refused, by its destination,
             and B's work untouched; with --unfenced, the damage done
          1  it was not: what differs is listed
          2  wrong usage
          3  something is missing or broken here; the message says what to do
        """
        for name in DEMO_NEEDS:
            if importlib.util.find_spec(name) is None:
                missing(name, "demo")
        from sinkfence.demo.show import show

        # As Ctrl-C does: with the demo's processes and folders cleared away first.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
        raise typer.Exit(show(rich.console.Console(highlight=False), fenced=not unfenced))

    schema = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(schema, name="schema", help="Print what has to be installed, for those who run it by hand.")

    @schema.command()
    def postgres() -> None:
        """Print the SQL that makes a PostgreSQL database refuse a stale owner, as `install(conn)` runs it.

        One statement, to be run by a superuser or a role that may create roles and schemas. To run it again
        is harmless, and upgrades.
        """
        from sinkfence_postgres.installation import schema as script

        typer.echo(script(), nl=False)

    return app


def missing(name: str, extra: str) -> NoReturn:
    """Say what to install, and exit."""
    print(f"sinkfence: {name} is not installed: pip install 'sinkfence[{extra}]'", file=sys.stderr)
    sys.exit(MISSING)
