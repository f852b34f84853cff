"""`sinkfence demo`: late effects, refused on real servers."""

from typing import Annotated, Final

import typer

from sinkfence.cli.exits import need

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

    With exit code 0 all was as it has to be: each late effect refused by its destination, and B's work
    untouched; with --unfenced, the damage done. With 1 it was not, and what differs is listed.
    """
    need(NEEDS, "demo")
    import rich.console

    from sinkfence.demo.show import show

    raise typer.Exit(show(rich.console.Console(highlight=False), fenced=not unfenced))
