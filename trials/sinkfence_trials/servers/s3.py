"""A throwaway S3 server (SeaweedFS): real, private, and gone with the process that asked for it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.supervised import Supervised, supervised

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SERVICES: Final[tuple[str, ...]] = ("s3", "master", "volume", "filer", "admin")
"""What runs in the one process, each with a port and a gRPC port."""

GRPC: Final = 10000
"""What they add to each other's port to find the gRPC port."""

IMPATIENT: Final[dict[str, Any]] = {
    "connect_timeout": 1,
    "read_timeout": 5,
    "retries": {"total_max_attempts": 1},
}


@dataclass(frozen=True)
class S3Server:
    """How to reach a running S3 server, and a bucket that is there."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    region: str = "us-east-1"

    def client(self, **config: Any) -> S3Client:
        """Return a client of its own (boto3), with settings of botocore.config.Config if some are given."""
        return client(self.endpoint, self.access_key, self.secret_key, self.region, **config)


def client(
    endpoint: str, access_key: str | None, secret_key: str | None, region: str | None, **config: Any
) -> S3Client:
    """Return a client (boto3) that goes to one host, whatever the bucket, and by way of no proxy."""
    import boto3
    from botocore.config import Config

    settings = Config(s3={"addressing_style": "path"}, proxies={}).merge(Config(**config))
    return boto3.client(  # pyright: ignore[reportUnknownMemberType] - stubs of its other services
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=region,
        config=settings,
    )


class Weed:
    """SeaweedFS's process, to crash and restart it."""

    def __init__(self, process: Supervised, weed: Path) -> None:
        self._process, self._weed = process, weed
        self._ports: dict[str, int] = dict(zip(SERVICES, binaries.free_ports(len(SERVICES)), strict=True))
        self.server: S3Server = S3Server(
            f"http://127.0.0.1:{self._ports['s3']}", secrets.token_hex(10), secrets.token_hex(20), "sinkfence"
        )
        (process.folder / "identities.json").write_text(identities(self.server))
        (process.folder / "data").mkdir()

    def start(self) -> None:
        """Start it; after `kill` it comes back on the same folder and ports.

        Raises:
            ServerError: it could not be started.
        """
        # It makes these in /tmp, whatever TMPDIR says, and leaves them there.
        litter = [f"/tmp/seaweedfs-{name}-grpc-{port + GRPC}.sock" for name, port in self._ports.items()]  # noqa: S108
        server = self.server
        self._process.start([self._weed, *flags(self._ports, server.bucket)], litter=litter)
        with contextlib.closing(server.client(**IMPATIENT)) as client:
            self._process.wait(lambda code: code is None and writable(client, server.bucket))

    def kill(self) -> None:
        """SIGKILL it; return when it has gone."""
        self._process.ask(do="kill")


@contextlib.contextmanager
def weed() -> Generator[Weed]:
    """Run an S3 server as `s3`, and give its process."""
    program = binaries.find_weed()
    with supervised("SeaweedFS", binaries.temporary()) as process:
        started = Weed(process, program)
        started.start()
        yield started


@contextlib.contextmanager
def s3() -> Generator[S3Server]:
    """Run an S3 server on 127.0.0.1; at the end, or when this process is killed, nothing of it stays.

    Raises:
        ServerError: it could not be found or started; the message says what to do.
    """
    with weed() as started:
        yield started.server


def flags(ports: dict[str, int], bucket: str) -> list[str]:
    """Return SeaweedFS's command line: on the loopback interface, S3 and what it needs (`weed mini -h`)."""
    return [
        "mini",
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",  # every interface, if not given
        "-master.telemetry=false",  # on, if not given
        "-admin.ui=false",
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.preStopSeconds=0",
        f"-bucket={bucket}",
        "-s3.config=identities.json",  # anonymous, if not given
        "-s3.localSocket=s3.sock",  # paths may have 107 bytes: relative to the server's folder
        "-filer.localSocket=filer.sock",
        *(f"-{name}.port={port}" for name, port in ports.items()),
        *(f"-{name}.port.grpc={port + GRPC}" for name, port in ports.items()),
    ]


def identities(server: S3Server) -> str:
    """Return SeaweedFS's file of identities: one that may do everything."""
    credentials = [{"accessKey": server.access_key, "secretKey": server.secret_key}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return json.dumps({"identities": [{"name": "admin", "credentials": credentials, "actions": actions}]})


def writable(client: S3Client, bucket: str) -> bool:
    """Whether the server takes writes: it lists its buckets a good while before it does."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.put_object(Bucket=bucket, Key="probe", Body=b"")
        client.delete_object(Bucket=bucket, Key="probe")
    except (BotoCoreError, ClientError):
        return False
    return True
