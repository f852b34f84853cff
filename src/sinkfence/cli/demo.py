"""`sinkfence demo`: late effects, refused on real servers."""

from pathlib import Path
from typing import Annotated, Final

import typer

from sinkfence.cli.exits import need

NEEDS: Final = ("psycopg", "sqlalchemy", "boto3", "requests", "jwt", "cryptography", "starlette", "uvicorn")


def demo(
    unfenced: Annotated[
        bool, typer.Option("--unfenced", help="Play it without the checks, and see the damage.")
    ] = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE.html",
            dir_okay=False,
            writable=True,
            help="Also draw it: a page for a browser.",
        ),
    ] = None,
) -> None:
    """See late effects refused, on real servers of its own (about 10 s).

    Worker A takes a job as generation 7 and is stopped (SIGSTOP) with a transaction open, an upload
    begun and a request on the wire. Its lease runs out; worker B takes the job as generation 8 and does
    the work. Then worker A is continued, and its COMMIT, its upload, its request and its completion
    arrive late.

    Exit code 0: every late effect was refused and B's work stands; with --unfenced, the damage was done.
    1: not so; the differences are listed.
    """
    if timeline is not None and not timeline.parent.is_dir():
        raise typer.BadParameter(f"{timeline.parent} is no folder", param_hint="--timeline")
    need(NEEDS, "demo")
    import rich.console

    from sinkfence_trials.demo.show import draw, show
    from sinkfence_trials.demo.telling import Telling

    telling = Telling()
    code = show(rich.console.Console(highlight=False), fenced=not unfenced, telling=telling)
    if timeline is not None and telling.events:
        draw(timeline, telling, fenced=not unfenced)
        typer.echo(f"\nThe timeline: {timeline}")
    raise typer.Exit(code)
