"""Where a run plays: servers of its own, or the user's, where it keeps to names of its own."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from sinkfence_trials.servers.cluster import Cluster
from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.s3 import S3Server, Weed, client, weed

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and how to reach it. Keys and a region that are not given boto3 finds as it always does."""

    name: str
    endpoint: str
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None

    @classmethod
    def on(cls, server: S3Server) -> Self:
        """The bucket of a server of our own."""
        return cls(server.bucket, server.endpoint, server.region, server.access_key, server.secret_key)

    def client(self, **config: Any) -> S3Client:
        """Return a client of its own (boto3), with settings of botocore.config.Config if some are given."""
        return client(self.endpoint, self.access_key, self.secret_key, self.region, **config)


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses, as every process of a run is given them."""

    run: str
    """The run's name: its schema in the database, and how its job ids and its objects begin."""
    postgres: str
    """A libpq URI, which leads into the run's schema: leases, effects, and whatever else a part makes."""
    bucket: Bucket
    service: str | None = None
    """URL of the user's service; None where the run starts one of its own."""
    cluster: Cluster | None = field(default=None, repr=False)
    """The embedded server's process, to crash and restart it; None for a server of the user's."""

    weed: Weed | None = field(default=None, repr=False)
    """The embedded S3 server's process, as `cluster`."""
    left: tuple[str, ...] = ()
    """What a run leaves on the user's servers, in words. Of our own nothing is left."""

    @property
    def prefix(self) -> str:
        """How the run's job ids begin, and its objects' names."""
        return f"torture/{self.run}/"


@contextlib.contextmanager
def places(
    *, postgres_dsn: str | None = None, bucket: Bucket | None = None, service: str | None = None
) -> Generator[Places]:
    """Start the servers that are not given, and make the run's schema; our own servers are gone at the end.

    Raises:
        ServerError: a server could not be had.
        psycopg.OperationalError: the user's database cannot be reached.
        ValueError: the database is not given by a URI.
    """
    import psycopg

    if postgres_dsn is not None and "://" not in postgres_dsn:
        raise ValueError("--postgres takes a URI: postgresql://USER@HOST:5432/DATABASE")
    run = f"torture_{secrets.token_hex(4)}"
    cluster: Cluster | None = None
    started: Weed | None = None
    left: list[str] = []
    if postgres_dsn is not None:
        left += [
            f"the schema {run} (DROP SCHEMA {run} CASCADE)",
            f"marks and steps of the jobs torture/{run}/... in the schema sinkfence, installed if it was not "
            "there: marks are never deleted",
        ]
    if bucket is not None:
        left.append(f"the objects torture/{run}/... in the bucket {bucket.name}")
    if service is not None:
        left.append(f"whatever {service} has done for the jobs torture/{run}/...")
    with contextlib.ExitStack() as servers:
        if postgres_dsn is None:
            server = servers.enter_context(postgres())
            postgres_dsn, cluster = server.create_database(), server.cluster
        if bucket is None:
            started = servers.enter_context(weed())
            bucket = Bucket.on(started.server)
        with psycopg.connect(postgres_dsn) as conn:
            conn.execute(f"CREATE SCHEMA {run}".encode())
        yield Places(run, within(postgres_dsn, run), bucket, service, cluster, started, tuple(left))


def within(dsn: str, schema: str) -> str:
    """Return a libpq URI whose sessions find the schema's tables first."""
    return with_query(dsn, f"options={quote(f'-csearch_path={schema}')}")


def with_query(url: str, more: str) -> str:
    """Return a URL with more in its query."""
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&{more}" if parts.query else more).geturl()
