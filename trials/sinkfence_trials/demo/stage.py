"""What the story plays on: real servers, empty and private, and gone at its end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final, LiteralString

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import sinkfence_postgres
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.demo.narrator import Narrator
from sinkfence_trials.demo.places import CHARGE, Places
from sinkfence_trials.demo.process import Process
from sinkfence_trials.demo.proxy import HoldingProxy, holding_proxy
from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.s3 import s3

LEDGER: Final = "CREATE TABLE line (invoice int, line text, amount int, PRIMARY KEY (invoice, line))"
CHARGES: Final = "CREATE TABLE charge (invoice int, amount int, sender text)"


@dataclass(frozen=True, slots=True)
class Stage:
    """The places of the story, and the network in the way of one worker's requests."""

    fenced: bool
    """Whether the destinations check."""
    places: Places
    network: HoldingProxy
    a: Process
    b: Process
    """Two workers, waiting for their briefs."""

    def begin(self, worker: Process, *, stopped: bool = False) -> None:
        """Let a worker begin; one that is to be stopped has a slow network before the service."""
        places = replace(self.places, service=self.network.url) if stopped else self.places
        mode = {"fenced": self.fenced, "stopped": stopped}
        worker.begin({"name": worker.name, "places": asdict(places), **mode})


@contextmanager
def stage(narrator: Narrator, *, fenced: bool) -> Generator[Stage]:
    """Start the servers, make the databases and the service; at the end nothing of them is left.

    Raises:
        ServerError: a server could not be had.
        ProcessFailed: the service did not start.
    """
    private, public = key_pair()
    with ExitStack() as stack:
        # First the processes that wait for a brief: they import what they need while the servers start.
        service = stack.enter_context(Process("the service", "sinkfence_trials.demo.service"))
        a = stack.enter_context(Process("worker A", "sinkfence_trials.demo.worker"))
        b = stack.enter_context(Process("worker B", "sinkfence_trials.demo.worker"))
        with narrator.progress("PostgreSQL"):
            server = stack.enter_context(postgres())
            leases, ledger, charges = (server.create_database() for _ in range(3))
            with closing(SqlStore(leases)) as store:
                store.create_schema()
            prepare(ledger, LEDGER)
            prepare(charges, CHARGES)
        with narrator.progress("an S3 server (SeaweedFS)"):
            bucket = stack.enter_context(s3())
        with narrator.progress("an HTTP service (uvicorn)"):
            service.begin({"fenced": fenced, "dsn": charges, "public_key": public})
            port = service.hear("listens")["port"]
        network = stack.enter_context(holding_proxy(port, CHARGE))
        places = Places(
            leases=leases,
            ledger=ledger,
            s3=asdict(bucket),
            charges=charges,
            service=f"http://127.0.0.1:{port}",
            signing_key=private,
        )
        yield Stage(fenced, places, network, a, b)


def prepare(dsn: str, table: LiteralString) -> None:
    """Make a table, and what PostgreSQL needs to check tokens: that is in a schema of its own."""
    with psycopg.connect(dsn) as conn:
        conn.execute(table)
        sinkfence_postgres.install(conn)


def key_pair() -> tuple[str, str]:
    """Return a fresh Ed25519 key, private and public half (PEM)."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()
