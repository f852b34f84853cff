"""What the commands are pointed at: a lease store, a database, a bucket; opened."""

import contextlib
import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sinkfence.cli import where
from sinkfence.cli.exits import MISSING, need
from sinkfence.cli.masking import Place, reaching
from sinkfence.cli.mistakes import Mistake
from sinkfence.errors import SchemaMismatch
from sinkfence.tokens import check_job_id

if TYPE_CHECKING:
    import psycopg

    from sinkfence.stores.sql import SqlStore
    from sinkfence_s3.exchange import S3Client

_STORE_HELP: Final = (
    "The lease store: postgresql+psycopg://USER@HOST/DATABASE or sqlite:///FILE. Keep a password in the "
    "variable or in ~/.pgpass: everybody on this host can see a command line."
)
_DSN_HELP: Final = (
    "The database, as for psql: postgresql://USER@HOST/DATABASE. Keep a password in the variable, in "
    "PGPASSWORD or in ~/.pgpass."
)

Store = Annotated[
    str | None, typer.Option("--store", envvar="SINKFENCE_STORE", metavar="URL", help=_STORE_HELP)
]
Dsn = Annotated[
    str | None, typer.Option("--postgres", envvar="SINKFENCE_POSTGRES", metavar="DSN", help=_DSN_HELP)
]
DsnArgument = Annotated[
    str | None,
    typer.Argument(envvar="SINKFENCE_POSTGRES", metavar="DSN", help=_DSN_HELP, show_default=False),
]
Prefix = Annotated[
    str,
    typer.Argument(
        metavar="[PREFIX]", help="Only the jobs whose job_id begins with this.", show_default=False
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The whole job_id.", show_default=False)]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint", metavar="URL", help="The S3 server, if it is not Amazon's; else as boto3 finds it."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking, for scripts.")]


@contextlib.contextmanager
def lease_store(url: str | None) -> Generator["tuple[SqlStore, Place]"]:
    """Open a lease store, and say of what goes wrong there what to do."""
    if not url:
        raise Mistake("which lease store? Give --store URL, or set SINKFENCE_STORE")
    sqlite = url.startswith("sqlite")
    if sqlite:
        need(["sqlalchemy"], "sql")
    else:
        need(["sqlalchemy", "psycopg"], "postgres")
    place = where.lease_store(url)
    # SQLite would make it: a store without leases.
    if place.file and not re.match(":memory:|file:", place.file) and not Path(place.file).is_file():
        raise Mistake(f"{place}: there is no such file", MISSING)
    with reaching(place):
        from sinkfence.stores.sql import SqlStore

        store = SqlStore(url)
        try:
            yield store, place
        except SchemaMismatch as error:
            dialect = " --dialect sqlite" if sqlite else ""
            printed = f" (`sinkfence schema leases{dialect}` prints it as SQL)"
            lacks = "create_schema" in f"{error}"  # and not a right, say
            raise Mistake(f"{place}: {error}{printed if lacks else ''}", MISSING) from None
        finally:
            store.close()


@contextlib.contextmanager
def database(dsn: str | None) -> Generator["psycopg.Connection[Any]"]:
    """Connect to a PostgreSQL database, and say of what goes wrong there what to do."""
    if not dsn:
        raise Mistake("which database? Give its DSN, or set SINKFENCE_POSTGRES")
    need(["psycopg", "sqlalchemy"], "postgres")
    dsn = re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", dsn)  # as SQLAlchemy has it
    import psycopg

    place = where.database(dsn)
    with reaching(place):
        try:
            with psycopg.connect(dsn, connect_timeout=5) as connection:
                yield connection
        except SchemaMismatch as error:
            printed = "" if "GRANT" in f"{error}" else " (`sinkfence schema postgres` prints it as SQL)"
            raise Mistake(f"{place}: {error}{printed}", MISSING) from None


@contextlib.contextmanager
def bucket(name: str, endpoint: str | None) -> Generator["S3Client"]:
    """Make a client of S3, and make sure that a bucket can be reached at all."""
    need(["boto3"], "s3")
    at = f" at {where.web('--endpoint', endpoint, login=False)}" if endpoint else ""
    place = Place(f"bucket {name!r}{at}", where.proxies())
    with reaching(place):
        import boto3
        from botocore.config import Config
        from botocore.exceptions import ClientError, ParamValidationError

        patience = Config(connect_timeout=5, retries={"total_max_attempts": 3})
        session = boto3.Session()
        made: S3Client = session.client(  # pyright: ignore[reportUnknownMemberType]
            "s3", endpoint_url=endpoint, config=patience
        )
        keys = session.get_credentials()
        held = keys.get_frozen_credentials() if keys else ()
        where.seen("the keys or the session token for S3", *held)
        hidden = replace(place, secrets=(*place.secrets, *held))
        with contextlib.closing(made) as client, reaching(hidden):
            if not endpoint:  # which may stand in a variable or in a file of boto3's
                where.web("the endpoint", made.meta.endpoint_url, login=False)
            try:
                client.head_bucket(Bucket=name)
            except ParamValidationError:
                raise Mistake(f"{name!r} can't be the name of a bucket") from None
            except ClientError as error:
                # Who may not list may still read and write: what comes will tell.
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 403:
                    raise
            yield client


def job_id(text: str) -> str:
    """Return a job_id as it was typed."""
    try:
        return check_job_id(text)
    except ValueError as error:
        raise Mistake(str(error)) from None
