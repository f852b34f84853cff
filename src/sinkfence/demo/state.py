"""What the destinations hold: read from them directly, without a worker."""

from __future__ import annotations

import json

import psycopg

from sinkfence import Leases
from sinkfence.demo.effects import NEW
from sinkfence.demo.places import BILLS, DOCUMENT, JOB
from sinkfence.demo.servers.s3 import S3Server
from sinkfence.demo.stage import Stage
from sinkfence.stores.sql import SqlStore
from sinkfence_s3 import FencedBucket

State = dict[str, str]
"""By effect, what is there of it."""


def read_state(stage: Stage) -> State:
    """Read the table, the object, the service's own table, and the job's record."""
    places, server = stage.places, S3Server(**stage.places.s3)
    with psycopg.connect(places.ledger) as conn:
        lines = conn.execute("SELECT line || ': ' || amount FROM line ORDER BY amount").fetchall()
    if stage.fenced:
        document = FencedBucket(server.client(), server.bucket).object(DOCUMENT).get().read()
    else:
        document = server.client().get_object(Bucket=server.bucket, Key=DOCUMENT)["Body"].read()
    with psycopg.connect(places.charges) as conn:
        charges = conn.execute("SELECT amount || ' by ' || sender FROM charge ORDER BY amount").fetchall()
    with Leases(SqlStore(places.leases)) as leases:
        record = leases.get(JOB)
    assert record is not None
    return {
        "transaction": ", ".join(line for (line,) in lines),
        "upload": ", ".join(document.decode().splitlines()),
        "request": ", ".join(charge for (charge,) in charges),
        "completion": f"{record.state}, generation {record.generation}, {json.dumps(record.result)}",
    }


def state_after(*, fenced: bool) -> State:
    """Return what has to be there at the end: worker B's alone, or worker A's late effects on top of it."""
    a, b = BILLS["worker A"], BILLS["worker B"]
    if fenced:
        lines, document, charges, total = str(b), str(b), f"{b.amount} by worker B", b.amount
    else:
        lines = f"{a}, {b}"  # billed twice
        document = str(a)  # worker B's line is lost
        charges = f"{a.amount} by worker A, {b.amount} by worker B"  # charged twice
        total = a.amount  # the wrong result, under worker B's generation
    completion = f"done, generation {NEW}, {json.dumps({'total': total})}"
    return {"transaction": lines, "upload": document, "request": charges, "completion": completion}
