"""`sinkfence demo`: late effects, refused on real servers."""

import signal
import sys
from typing import Annotated, Final

import typer

from sinkfence.cli.exits import TERMINATED, need

NEEDS: Final = (
    "psycopg",
    "sqlalchemy",
    "boto3",
    "requests",
    "jwt",
    "cryptography",
    "starlette",
    "uvicorn",
)


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
    need(NEEDS, "demo")
    import rich.console

    from sinkfence.demo.show import show

    # As Ctrl-C does: with the demo's processes and folders cleared away first.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    raise typer.Exit(show(rich.console.Console(highlight=False), fenced=not unfenced))
