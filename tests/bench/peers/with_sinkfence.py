"""sinkfence: a lease, a guarded transaction, and `complete`."""

from __future__ import annotations

import contextlib

import psycopg

from bench.peers.stage import PATIENCE, PLAIN, TTL, Stage
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, install, transaction

DISTRIBUTION, MODULES, REDIS = "sinkfence", (), False
JOB = "doc/1"


def _store(stage: Stage) -> SqlStore:
    return SqlStore(stage.dsn.replace("postgresql:", "postgresql+psycopg:"))


def prepare(stage: Stage) -> None:
    _store(stage).create_schema()
    with psycopg.connect(stage.dsn) as conn:
        install(conn)


def work(stage: Stage) -> None:
    with (
        Leases(_store(stage), ttl=TTL) as leases,
        leases.hold(JOB, arm=[PostgresSink(stage.dsn)], wait=PATIENCE) as lease,
    ):
        token = lease.token  # kept: afterwards the lease itself would say that it is over, and ask nobody
        stage.inside()
        with stage.trying("effect"), psycopg.connect(stage.dsn) as conn, transaction(conn, token):
            conn.execute(PLAIN, (stage.role,))
        with stage.trying("completion"):
            lease.complete(stage.role)


def record(stage: Stage) -> str:
    with contextlib.closing(_store(stage)) as store:
        known = store.get(JOB)
    return "nobody" if known is None or known.result is None else known.result.strip('"')
