"""`sinkfence doctor`: does this destination refuse a stale owner, and what speaks against it?"""

import contextlib
import re
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sinkfence.cli import places, where
from sinkfence.cli.consent import who
from sinkfence.cli.exits import CODES, FINE, REFUSED, need
from sinkfence.cli.masking import Place, reaching
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.output import put_report
from sinkfence.cli.places import AsJson, database, lease_store
from sinkfence.findings import Report

if TYPE_CHECKING:
    from sinkfence.leases.lease import Lease
    from sinkfence_http.signer import TokenSigner

commands: Final = typer.Typer(no_args_is_help=True, rich_markup_mode=None, epilog=CODES)

VISIT: Final = 300.0
"""Seconds that a visit may take: some hundred and fifty requests, most of them eight at a time."""

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--sign-key", metavar="FILE", help="The workers' private key as PEM; for HS256 the secret's bytes."
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="'NAME: VALUE'", help="Sent with each request, for a login. May be repeated."),
]


@commands.callback()
def group() -> None:
    """Ask a destination whether it refuses a stale owner.

    Do so before you depend on it, and after each change of servers or proxies. The last line is `fenced`,
    with exit code 0, or `NOT FENCED, or not shown to be`, with 1: a finding is `broken`, or `unknown` as it
    could not be tried. A `weak` fence holds until somebody other than your application goes round
    it, or a machine crashes. A `note` is worth knowing.

    \b
    Examples:
      sinkfence doctor postgres postgresql://app@db.example/shop
      sinkfence doctor s3 --bucket reports
      sinkfence doctor http https://orders.example/
    """


@commands.command(epilog=CODES)
def postgres(dsn: places.DsnArgument = None, as_json: AsJson = False) -> None:
    """Look at a PostgreSQL database, and change nothing.

    Log in as the role of your application: the doctor looks at the settings and rights of its sessions.

    \b
    Example:
      sinkfence doctor postgres postgresql://app@db.example/shop
    """
    with database(dsn) as connection:
        from sinkfence_postgres.doctor import doctor

        report = doctor(connection)
    tell(report, as_json=as_json)


@commands.command(epilog=CODES)
def s3(
    bucket: Annotated[str, typer.Option(metavar="B", help="A bucket that exists.")],
    prefix: Annotated[str, typer.Option(metavar="P", help="The prefix of your FencedBucket.")] = "",
    endpoint: places.Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Try out whether a bucket enforces conditions.

    Fenced objects rest on conditional writes, which some S3 servers ignore. The doctor sends some hundred
    small requests for keys under PREFIX.sinkfence-probe/, and deletes what it has made. Credentials and
    region are found as boto3 finds them: AWS_ACCESS_KEY_ID, AWS_PROFILE and so on.

    \b
    Examples:
      sinkfence doctor s3 --bucket reports --prefix daily/
      sinkfence doctor s3 --bucket reports --endpoint http://127.0.0.1:9000
    """
    with places.bucket(bucket, endpoint) as client:
        from sinkfence_s3.doctor import doctor

        report = doctor(client, bucket, prefix)
    tell(report, as_json=as_json)


@commands.command(epilog=CODES)
def http(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the service's door stands.", show_default=False)
    ],
    *,
    path: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A fenced route below URL, to be tried as well."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="The method for PATH; the default changes nothing.")
    ] = "PROPFIND",
    sign_key: KeyFile = None,
    kid: Annotated[
        str | None, typer.Option(metavar="ID", help="The key's id, as the service has it.")
    ] = None,
    alg: Annotated[str, typer.Option(metavar="ALG", help="EdDSA, ES256, RS256, PS256 or HS256.")] = "EdDSA",
    issuer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who signs, as the service has it.")
    ] = None,
    audience: Annotated[str | None, typer.Option(metavar="NAME", help="The service's own name.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The lease store, if the service looks up the newest owner there (AuthorityLookup).",
        ),
    ] = None,
    header: Header = None,
    as_json: AsJson = False,
) -> None:
    """Send a service stale and forged tokens, and see it refuse them.

    Harmless: all requests are without a body, for a job of the doctor's own (sinkfence-doctor/probe), whose
    mark stays at the service. They go to /.well-known/fencing-arm, which the door answers itself. With
    --path they go to that route as well, but first goes one without a token. If no door turns that one
    away, it reaches your handler, by a method (PROPFIND) that changes nothing, and it is the only one.

    Without --sign-key the tokens are unsigned, for a service with TrustedNetwork. For one with
    AuthorityLookup give --store: the doctor takes the job sinkfence-doctor/probe there, and releases it.

    \b
    Examples:
      sinkfence doctor http https://orders.example/ --path accounts/17 \\
        --sign-key workers.pem --kid 2026-06 --issuer workers --audience orders
      sinkfence doctor http http://127.0.0.1:8000/
    """
    if sign_key is None:
        need(["requests"], "requests")
    else:
        need(["requests", "jwt", "cryptography"], "requests,jwt")
    import requests

    from sinkfence_http.doctor import doctor

    service = where.web("the service's URL", url, login=True)
    sign = None if sign_key is None else signer(sign_key, kid, alg, issuer, audience)
    headers = sent(header or [])
    place = Place(f"service {service}", (*service.secrets, *headers.values(), *where.proxies()))
    with reaching(place), requests.Session() as session:
        session.headers.update(headers)
        with lease(store) as bearer:
            report = doctor(session, url, sign=sign, bearer=bearer, path=path, method=method)
    tell(report, as_json=as_json)


def sent(lines: list[str]) -> dict[str, str]:
    """Return headers as they were typed. Of a wrong one nothing is told: it may be a password."""
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = (part.strip(" \t") for part in line.partition(":"))
        # RFC 9110, sections 5.1 and 5.5.
        named = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
        if not named or not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]+", value):
            raise Mistake("--header is 'NAME: VALUE', in one line")
        headers[name] = value
    return headers


@contextlib.contextmanager
def lease(store: str | None) -> Generator["Lease | None"]:
    """Hold the doctor's own job, under a generation that has one below it; None where no store is named."""
    if store is None:
        yield None
        return
    from sinkfence.leases import Leases
    from sinkfence_http.doctor import JOB

    with lease_store(store) as (opened, _), Leases(opened, owner=who()) as leases:
        held = leases.acquire(JOB, ttl=VISIT)
        if held.generation == 1:
            held.release()
            held = leases.acquire(JOB, ttl=VISIT)
        yield held


def signer(file: Path, kid: str | None, alg: str, issuer: str | None, audience: str | None) -> "TokenSigner":
    """Return what signs tokens as the workers do."""
    names = {"--kid": kid, "--issuer": issuer, "--audience": audience}
    if lacking := [name for name, value in names.items() if not value]:
        raise Mistake(f"--sign-key needs {', '.join(lacking)} as well, as the service has them")
    try:
        key = file.read_bytes()
    except OSError as error:
        raise Mistake(f"--sign-key: {error.strerror}: {file}") from None
    from sinkfence_http.signer import TokenSigner

    try:
        return TokenSigner(key, kid=kid or "", alg=alg, issuer=issuer or "", audience=audience or "")
    except (TypeError, ValueError) as error:
        raise Mistake(f"--sign-key: {error}") from None


def tell(report: Report, *, as_json: bool) -> None:
    """Print a report, and exit by what it says."""
    put_report(report, as_json=as_json)
    raise typer.Exit(FINE if report.fenced else REFUSED)
