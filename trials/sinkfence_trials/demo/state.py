"""What the destinations hold: read from them directly, without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, LiteralString

import psycopg

from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_s3 import FencedBucket
from sinkfence_trials.demo.places import DOCUMENT, JOB
from sinkfence_trials.demo.stage import Stage
from sinkfence_trials.servers.s3 import S3Server


def table(stage: Stage) -> str:
    """Read the table."""
    return rows(stage.places.ledger, "SELECT line || ': ' || amount FROM line ORDER BY amount")


def document(stage: Stage) -> str:
    """Read the object."""
    server = S3Server(**stage.places.s3)
    if stage.fenced:
        content = FencedBucket(server.client(), server.bucket).object(DOCUMENT).get().read()
    else:
        content = server.client().get_object(Bucket=server.bucket, Key=DOCUMENT)["Body"].read()
    return ", ".join(content.decode().splitlines())


def charges(stage: Stage) -> str:
    """Read the service's own table."""
    return rows(stage.places.charges, "SELECT amount || ' by ' || sender FROM charge ORDER BY amount")


def result(stage: Stage) -> str:
    """Read the job's record."""
    with Leases(SqlStore(stage.places.leases)) as leases:
        record = leases.get(JOB)
    assert record is not None
    return f"{record.state}, generation {record.generation}, {json.dumps(record.result)}"


READ: Final[dict[str, Callable[[Stage], str]]] = {
    "transaction": table,
    "upload": document,
    "request": charges,
    "completion": result,
}
"""By effect, what is there of it."""


def rows(dsn: str, query: LiteralString) -> str:
    """Read texts from a database."""
    with psycopg.connect(dsn) as conn:
        return ", ".join(text for (text,) in conn.execute(query))


def store_clock(stage: Stage) -> float:
    """The lease store's clock, in seconds."""
    return float(rows(stage.places.leases, "SELECT extract(epoch FROM clock_timestamp())::text"))
