"""The real servers that the tests talk to."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sinkfence.demo.servers.postgres import PostgresServer, postgres
from sinkfence.demo.servers.s3 import S3Server, s3

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    with postgres() as server:
        yield server


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The libpq URI of a fresh database, as superuser."""
    database = postgres_server.create_database()
    yield database
    postgres_server.drop_database(database)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server."""
    with s3() as server:
        yield server


@pytest.fixture(scope="session")
def s3_client(s3_server: S3Server) -> Iterator[S3Client]:
    """A boto3 client of the S3 server, with boto3's own retries."""
    client = s3_server.client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def bucket_name(s3_server: S3Server) -> str:
    """A bucket of the S3 server, shared by all tests: each keeps to its own `prefix`."""
    return s3_server.bucket


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"t-{secrets.token_hex(6)}/"
