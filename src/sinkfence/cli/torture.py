"""`sinkfence torture`: the fences under faults, on servers of its own or on the user's."""

import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from sinkfence.cli import places, where
from sinkfence.cli.exits import need
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.usage import masked

NEEDS: Final = ("psycopg", "sqlalchemy", "boto3", "requests", "starlette", "uvicorn")

commands: Final = typer.Typer(rich_markup_mode=None)

CODES: Final = """\b
Exit codes:
  0    nothing was broken, and the run counts; with --sabotage: it was caught
  1    an invariant was broken: which, by which event, is said; with --sabotage: it was not caught
  2    wrong usage
  3    a server could not be had or reached: the message says what to do
  4    inconclusive: too little happened, or a part of the run died, so that it shows nothing
  130  Ctrl-C; 143 SIGTERM
"""


@commands.callback(invoke_without_command=True, epilog=CODES)
def torture(  # noqa: PLR0917 - as typer has it
    context: typer.Context,
    seconds: Annotated[
        float,
        typer.Option(
            min=1.0, help="For how long; up to four times as long while too little happens, on a busy host."
        ),
    ] = 25.0,
    seed: Annotated[
        int | None, typer.Option(help="Of the schedule of faults; by chance if not given.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the histories there, on a local disk; ./torture_... if not given."
        ),
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="Your PostgreSQL, for the leases and as a destination (libpq URI)."),
    ] = None,
    bucket: Annotated[str | None, typer.Option(metavar="NAME", help="Your bucket; needs --endpoint.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Its server. Keys are found as boto3 finds them.")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Your service: takes POST URL/JOB_ID with a token of its own door."),
    ] = None,
    sabotage: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Let one worker go round the check, and see it caught: see below."),
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Play a named scenario instead; more than one, if repeated."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the named scenarios.")] = False,
    server_faults: Annotated[
        bool,
        typer.Option(help="Kill our own servers, fail over, restore. Yours are never touched."),
    ] = True,
) -> None:
    """Have workers paused, killed, cut off and set to other clocks, and check what took effect.

    Three workers share two jobs, and write to PostgreSQL, S3 and an HTTP service, without asking whether
    their lease still holds. Each worker has a nemesis. What took effect is seen by observers that the
    library has no part in, and judged by a checker that shares no code with it.

    Sabotages: no-check, forged-generation, no-arm, client-clock-store, unfenced-s3, lossy-failover. Each has
    to be caught.

    \b
    Examples:
      sinkfence torture                               25 seconds, on servers that are started for it
      sinkfence torture --sabotage no-check           see that it can fail
      sinkfence torture --postgres DSN --seconds 600  your database, from names of its own
      sinkfence torture --scenario killed-postmaster  one fault, with what it has to come to
    """
    if context.invoked_subcommand is not None:
        return
    need(NEEDS, "demo")
    from sinkfence_trials.torture import show
    from sinkfence_trials.torture.places import Bucket
    from sinkfence_trials.torture.sabotage import SABOTAGES
    from sinkfence_trials.torture.scenarios import SCENARIOS

    if (bucket is None) != (endpoint is None):
        raise Mistake("--bucket and --endpoint go together")
    if sabotage is not None and sabotage not in SABOTAGES:
        raise Mistake(f"--sabotage is one of {', '.join(SABOTAGES)}")
    if list_:
        for line in show.listed():
            typer.echo(line)
        return
    names = list(dict.fromkeys(scenario or ()))
    if unknown := [name for name in names if name not in SCENARIOS]:
        says = f"there is no scenario {', '.join(unknown)}: see sinkfence torture --list"
        raise Mistake(masked(says, tuple(unknown), []))
    # What they say of these places later on has no password to show, nor has what they keep.
    if postgres is not None:
        where.database(postgres)
    if service is not None:
        where.web("--service", service, login=False)
    if bucket is not None:
        with places.bucket(bucket, endpoint):
            pass  # one that isn't there would be an inconclusive run
    wanted = show.Wanted(
        seconds,
        secrets.randbelow(10**6) if seed is None else seed,
        into,
        sabotage,
        server_faults,
        postgres,
        Bucket(bucket, endpoint) if bucket and endpoint else None,
        service,
    )
    try:
        code = show.play(names, wanted, typer.echo) if names else show.torture(wanted, typer.echo)
    except ValueError as error:
        raise Mistake(str(error)) from None
    raise typer.Exit(code)


@commands.command(epilog=CODES)
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What a run has kept.")],
) -> None:
    """Check a run or a scenario once more from what it has kept, without any server, and draw it anew.

    \b
    Example:
      sinkfence torture check ./what-was-kept
    """
    from sinkfence_trials.torture.verdict import judge

    try:
        verdict = judge(folder)
    except ValueError as error:
        raise Mistake(str(error)) from None
    for line in verdict.lines():
        typer.echo(line)
    typer.echo(f"see it: {verdict.draw(folder)}")
    raise typer.Exit(verdict.code)
