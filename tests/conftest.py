"""The real servers that the tests talk to: given by URL, in containers, from wheels, or from the PATH."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.postgres import PostgresServer, postgres
from sinkfence_trials.servers.s3 import S3Server, s3, writable
from sinkfence_trials.servers.supervised import ServerError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(frozen=True)
class Source:
    """Where one kind of server comes from: what the header says of it, and how to have one."""

    says: str
    run: Callable[[], AbstractContextManager[Any]]


POSTGRES = pytest.StashKey[Source]()
S3 = pytest.StashKey[Source]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=["embedded", "testcontainers"],
        help="take servers from wheels or the PATH, or in containers, and fail where there are none",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, which every process here would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    backend = config.getoption("--backend")
    image = os.environ.get("SINKFENCE_TEST_POSTGRES_IMAGE", "postgres:18")
    config.stash[POSTGRES] = (
        given(backend, "SINKFENCE_TEST_DSN", PostgresServer)
        or contained(backend, image, postgres_container)
        or embedded(binaries.find_postgres, postgres)
    )
    image = os.environ.get("SINKFENCE_TEST_S3_IMAGE", "chrislusf/seaweedfs:4.48")
    config.stash[S3] = (
        given(backend, "SINKFENCE_TEST_S3", s3_of_url)
        or contained(backend, image, s3_container)
        or embedded(binaries.find_weed, s3)
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"postgres: {config.stash[POSTGRES].says}", f"s3: {config.stash[S3].says}"]


def given(backend: str | None, variable: str, server: Callable[[str], object]) -> Source | None:
    """Return the server whose URL an environment variable holds."""
    url = os.environ.get(variable)
    if backend or not url:
        return None
    return Source(f"{variable} ({urlsplit(url).hostname})", lambda: nullcontext(server(url)))


def contained(
    backend: str | None, image: str, run: Callable[[str], AbstractContextManager[object]]
) -> Source | None:
    """Return a server in a container, where an engine answers and has the image, or may pull it."""
    if backend == "embedded":
        return None
    why = why_no_container(image)
    if why is None:
        return Source(f"testcontainers ({image})", lambda: run(image))
    if backend:
        raise pytest.UsageError(f"--backend testcontainers: {why}")
    return None


def why_no_container(image: str) -> str | None:
    """Return what speaks against a container of this image, or None."""
    from docker.errors import DockerException, ImageNotFound
    from testcontainers.core.docker_client import DockerClient

    # Where no engine answers, docker-py leaves a socket open, and the warning of it would fail a later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = DockerClient(timeout=2).client
            with contextlib.closing(client):
                client.ping()
                client.images.get(image)
        except ImageNotFound:
            if os.environ.get("SINKFENCE_TEST_PULL"):
                return None
            return f"there is no image {image}: pull it, or set SINKFENCE_TEST_PULL=1"
        except (DockerException, OSError):
            return "no container engine answers within 2 s"
        finally:
            gc.collect()
    return None


def embedded(find: Callable[[], Path], run: Callable[[], AbstractContextManager[object]]) -> Source:
    """Return a server of a wheel or of the PATH; that there is none is told by the tests that need it."""
    try:
        return Source(f"embedded ({find()})", run)
    except ServerError as missing:
        return Source(f"none ({missing})", run)


@contextlib.contextmanager
def postgres_container(image: str) -> Iterator[PostgresServer]:
    from testcontainers.community.postgres import PostgresContainer

    container = PostgresContainer(image, username="postgres", dbname="postgres", driver=None)
    with container.with_command("postgres -c max_connections=200 -c fsync=off"):
        yield PostgresServer(container.get_connection_url())


@contextlib.contextmanager
def s3_container(image: str) -> Iterator[S3Server]:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    access, secret = secrets.token_hex(10), secrets.token_hex(20)
    command = (
        "mini -dir=/data -ip=127.0.0.1 -ip.bind=0.0.0.0 -master.telemetry=false -admin.ui=false -webdav=false"
    )
    container = (
        DockerContainer(image)
        .with_command(f"{command} -bucket=sinkfence")
        .with_envs(AWS_ACCESS_KEY_ID=access, AWS_SECRET_ACCESS_KEY=secret)
        .with_exposed_ports(8333)
        .waiting_for(LogMessageWaitStrategy("Press Ctrl"))
    )
    with container:
        endpoint = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8333)}"
        server = S3Server(endpoint, access, secret, "sinkfence")
        with contextlib.closing(server.client(retries={"total_max_attempts": 10})) as client:
            assert writable(client, server.bucket), container.get_logs()
        yield server


def s3_of_url(url: str) -> S3Server:
    """Read `https://access-key:secret-key@host/bucket?region=…`."""
    parts = urlsplit(url)
    endpoint = parts._replace(netloc=parts.netloc.rpartition("@")[2], path="", query="").geturl()
    query = dict(item.split("=", 1) for item in parts.query.split("&") if item)
    keys = unquote(parts.username or ""), unquote(parts.password or "")
    return S3Server(endpoint, *keys, parts.path.strip("/"), query.get("region", "us-east-1"))


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    with pytestconfig.stash[POSTGRES].run() as server:
        yield server


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """The libpq URI of a fresh database, as superuser."""
    database = postgres_server.create_database()
    yield database
    postgres_server.drop_database(database)


@pytest.fixture
def application(dsn: str) -> Iterator[str]:
    """The libpq URI of that database, as a role that has no rights yet: the user of the URI."""
    import psycopg

    role = f"app_{secrets.token_hex(6)}"
    parts = urlsplit(dsn)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'secret'")
        yield parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
        admin.execute(f"drop owned by {role}; drop role {role}")


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config) -> Iterator[S3Server]:
    """An S3 server."""
    with pytestconfig.stash[S3].run() as server:
        yield server


@pytest.fixture(scope="session")
def s3_client(s3_server: S3Server) -> Iterator[S3Client]:
    """A boto3 client of the S3 server, with boto3's own retries."""
    with contextlib.closing(s3_server.client()) as client:
        yield client


@pytest.fixture(scope="session")
def bucket_name(s3_server: S3Server) -> str:
    """A bucket of the S3 server, shared by all tests: each keeps to its own `prefix`."""
    return s3_server.bucket


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"t-{secrets.token_hex(6)}/"
