"""What the destinations hold: read from them directly, without a worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import psycopg

from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
from sinkfence_s3 import FencedBucket
from sinkfence_trials.demo.effects import NEW
from sinkfence_trials.demo.places import BILLS, DOCUMENT, JOB
from sinkfence_trials.demo.stage import Stage
from sinkfence_trials.servers.s3 import S3Server

State = dict[str, str]
"""By effect, what is there of it."""


def table(stage: Stage) -> str:
    """Read the table."""
    with psycopg.connect(stage.places.ledger) as conn:
        lines = conn.execute("SELECT line || ': ' || amount FROM line ORDER BY amount").fetchall()
    return ", ".join(line for (line,) in lines)


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
    with psycopg.connect(stage.places.charges) as conn:
        found = conn.execute("SELECT amount || ' by ' || sender FROM charge ORDER BY amount").fetchall()
    return ", ".join(charge for (charge,) in found)


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


def read_state(stage: Stage) -> State:
    """Read all of them."""
    return {name: read(stage) for name, read in READ.items()}


def store_clock(stage: Stage) -> float:
    """The lease store's clock, in seconds."""
    with psycopg.connect(stage.places.leases) as conn:
        (now,) = conn.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone() or (0,)
    return float(now)


def state_after(*, fenced: bool) -> State:
    """Return what has to be there at the end: worker B's alone, or worker A's late effects on top of it."""
    a, b = BILLS["worker A"], BILLS["worker B"]
    if fenced:
        lines, invoice, charged, total = str(b), str(b), f"{b.amount} by worker B", b.amount
    else:
        lines = f"{a}, {b}"  # billed twice
        invoice = str(a)  # worker B's line is lost
        charged = f"{a.amount} by worker A, {b.amount} by worker B"  # charged twice
        total = a.amount  # the wrong result, under worker B's generation
    completion = f"done, generation {NEW}, {json.dumps({'total': total})}"
    return {"transaction": lines, "upload": invoice, "request": charged, "completion": completion}
