"""Where the commands are pointed at: a lease store, a database, a bucket; without telling a password."""

import contextlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

import typer

from sinkfence.cli.exits import MISSING, need
from sinkfence.cli.mistakes import Mistake, reaching
from sinkfence.errors import SchemaMismatch
from sinkfence.tokens import check_job_id

if TYPE_CHECKING:
    import psycopg

    from sinkfence.stores.sql import SqlStore
    from sinkfence_s3.store import S3Client

_STORE_HELP: Final = (
    "The lease store: postgresql+psycopg://USER@HOST/DATABASE or sqlite:///FILE. Others on this host see "
    "what stands on a command line: a password is better kept in the variable, or in ~/.pgpass."
)
_DSN_HELP: Final = (
    "The database, as for psql: postgresql://USER@HOST/DATABASE. A password is better kept in the variable, "
    "in PGPASSWORD or in ~/.pgpass."
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
    str, typer.Argument(metavar="[PREFIX]", help="Only jobs whose id begins so.", show_default=False)
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job_id, whole.", show_default=False)]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint", metavar="URL", help="Of a store that is not Amazon's; else as boto3 finds it."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking, for scripts.")]


@contextlib.contextmanager
def lease_store(url: str | None) -> Generator["SqlStore"]:
    """Open a lease store, and say of what goes wrong there what to do."""
    if not url:
        raise Mistake("which lease store? Give --store URL, or set SINKFENCE_STORE")
    sqlite = url.startswith("sqlite")
    if sqlite:
        need(["sqlalchemy"], "sql")
        _must_be_there(url)
    else:
        need(["sqlalchemy", "psycopg"], "postgres")
    with reaching(f"lease store {shown(url)}", secrets(url)):
        from sinkfence.stores.sql import SqlStore

        store = SqlStore(url)
        try:
            yield store
        except SchemaMismatch as error:
            dialect = " --dialect sqlite" if sqlite else ""
            raise Mistake(
                f"lease store {shown(url)}: {error} (`sinkfence schema leases{dialect}` prints it as SQL)",
                MISSING,
            ) from None
        finally:
            store.close()


@contextlib.contextmanager
def database(dsn: str | None) -> Generator["psycopg.Connection[Any]"]:
    """Connect to a PostgreSQL database, and say of what goes wrong there what to do."""
    if not dsn:
        raise Mistake("which database? Give its DSN, or set SINKFENCE_POSTGRES")
    need(["psycopg", "sqlalchemy"], "postgres")
    dsn = re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", dsn)  # as SQLAlchemy has it
    with reaching(f"database {shown(dsn)}", secrets(dsn)):
        import psycopg

        try:
            with psycopg.connect(dsn, connect_timeout=5) as connection:
                yield connection
        except SchemaMismatch as error:
            raise Mistake(
                f"database {shown(dsn)}: {error} (`sinkfence schema postgres` prints it as SQL)", MISSING
            ) from None


@contextlib.contextmanager
def bucket(name: str, endpoint: str | None) -> Generator["S3Client"]:
    """Make a client of S3, and make sure that a bucket can be reached at all."""
    need(["boto3"], "s3")
    where = f"bucket {name!r}" + (f" at {shown(endpoint)}" if endpoint else "")
    with reaching(where):
        import boto3
        from botocore.config import Config
        from botocore.exceptions import ClientError

        patience = Config(connect_timeout=5, retries={"total_max_attempts": 3})
        made: S3Client = boto3.client(  # pyright: ignore[reportUnknownMemberType]
            "s3", endpoint_url=endpoint, config=patience
        )
        with contextlib.closing(made) as client:
            try:
                client.head_bucket(Bucket=name)
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


def shown(url: str | None) -> str:
    """Return what may be shown of a URL or a connection string: no password, and nothing that may be one.

    Raises:
        Mistake: a password holds what ends it, so that its rest would be taken for a host, and be told.
    """
    url = url or ""
    scheme, found, rest = url.partition("://")
    if not found:
        kept = re.findall(r"(?:^|\s)((?:host|hostaddr|port|dbname|user|service)\s*=\s*[^\s']+)", url)
        return repr(" ".join(kept)) if kept else "that was given"
    if scheme.startswith("sqlite"):
        return url.partition("?")[0]
    authority, slash, path = rest.partition("?")[0].partition("/")
    user, _, hosts = authority.rpartition("@")
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if ":" in host.rpartition("]")[2]]
    if "@" in user or not all(port.isdigit() or not port for port in ports):
        raise Mistake(
            "that URL can't be read: in a user name or password write %40 for @, %3A for :, %2F for /, "
            "%3F for ?, %23 for #"
        )
    at = f"{user.partition(':')[0]}@" if user else ""
    return f"{scheme}://{at}{hosts}{slash}{path}"


def secrets(url: str) -> list[str]:
    """Return the passwords in a URL or a connection string, as they are written and as they are meant."""
    written = re.findall(r"://[^:/@]*:([^@]*)@|(?:password|passfile|sslpassword)\s*=\s*'?([^\s'&]+)", url)
    plain = [part for found in written for part in found if part]
    return [each for part in plain for each in {part, unquote(part)}]


def _must_be_there(url: str) -> None:
    # SQLite makes a file of any name that it is given: a typing error would become a store without leases.
    name = url.partition("?")[0].partition(":///")[2]
    if name and name != ":memory:" and not name.startswith("file:") and not Path(unquote(name)).is_file():
        raise Mistake(f"lease store {shown(url)}: there is no such file", MISSING)
