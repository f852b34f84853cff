"""`sinkfence marks`: what the destinations have seen."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sinkfence.cli import places
from sinkfence.cli.exits import CODES, REFUSED, need
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.output import put_list, put_one
from sinkfence.cli.places import AsJson, Prefix, database
from sinkfence.tokens import label

if TYPE_CHECKING:
    from sinkfence_postgres.marks import JobMark

commands: Final = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=CODES)


@commands.callback()
def group() -> None:
    """See the newest generation that a destination has seen.

    A destination keeps one mark for each job: the highest generation that it has seen, and its owner.
    Marks are never lowered or deleted. Never write under a number that you found here: a stale owner would
    look new by it.

    \b
    Examples:
      export SINKFENCE_POSTGRES=postgresql://ops@db.example/shop
      sinkfence marks list reports/
      sinkfence marks show reports/latest
    """


@commands.command("list", epilog=CODES)
def list_(prefix: Prefix = "", postgres: places.Dsn = None, as_json: AsJson = False) -> None:
    """List the marks of a PostgreSQL database.

    They come in bytewise order of the job_ids. You need a superuser, or a role that was granted SELECT ON
    sinkfence.mark. The list has the labels of the owners; `show` and --json have the random bits as well.

    \b
    Example:
      sinkfence marks list reports/ --postgres postgresql://ops@db.example/shop
    """
    found = read(postgres, prefix)
    table = [
        {
            "JOB": each.job_id,
            "GENERATION": str(each.generation),
            "OWNER": label(each.owner),
            "RAISED AT": each.raised_at.isoformat(sep=" ", timespec="seconds"),
        }
        for each in found
    ]
    put_list("marks", [fields(each) for each in found], table, as_json=as_json)


@commands.command(epilog=CODES)
def show(
    name: Annotated[
        str,
        typer.Argument(metavar="JOB", help="The whole job_id; with --bucket the name of an object."),
    ],
    *,
    postgres: places.Dsn = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="B", help="Look at an object in this S3 bucket instead.")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="P", help="The prefix of the FencedBucket.")] = "",
    endpoint: places.Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Show the mark of one job, or of one object in S3.

    Of an object it shows as well what is known of the content, unless it was only armed or was deleted.

    \b
    Examples:
      sinkfence marks show invoice-42 --postgres postgresql://ops@db.example/shop
      sinkfence marks show totals.csv --bucket reports --prefix monthly/
    """
    if bucket is not None:
        put_one(of_object(name, bucket, prefix, endpoint), as_json=as_json)
        return
    found = [each for each in read(postgres, places.job_id(name)) if each.job_id == name]
    if not found:
        raise Mistake(f"this database has seen no owner of a job {name!r}", REFUSED)
    put_one(fields(found[0]), as_json=as_json)


def read(dsn: str | None, prefix: str) -> "list[JobMark]":
    """Return the marks of a database."""
    with database(dsn) as connection:
        from sinkfence_postgres.marks import marks

        return marks(connection, prefix)


def of_object(name: str, bucket: str, prefix: str, endpoint: str | None) -> dict[str, Any]:
    """Return what is known of an object."""
    need(["boto3"], "s3")
    with places.bucket(bucket, endpoint) as client:
        from sinkfence_s3 import FencedBucket

        found = FencedBucket(client, bucket, prefix=prefix).object(name)
        known = found.stat() or found.mark()
    if known is None:
        raise Mistake(f"nobody has armed or put {prefix + name!r} in bucket {bucket!r}", REFUSED)
    return asdict(known)


def fields(mark: "JobMark") -> dict[str, Any]:
    """Return a mark as JSON has it."""
    return {**asdict(mark), "raised_at": mark.raised_at.isoformat()}
