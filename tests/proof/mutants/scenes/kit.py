"""What the contract kit says of one promise, with the harnesses that the real destinations have."""

from __future__ import annotations

from typing import Any

import psycopg
import psycopg_pool
from real_sinks import S3, TABLE, Once
from real_sinks import Postgres as Sink
from real_stores import Postgres as Store

import sinkfence_postgres
from sinkfence.testing import exercise_sink, exercise_store


def broken(module: str, promise: str, dsn: str, s3: Any, prefix: str) -> list[str]:
    """Try one promise on the destination that the scenes of this module are about; return those broken."""
    if module == "leases":
        report = exercise_store(Store(dsn), only=[promise])
    elif module == "s3":
        report = exercise_sink(S3(s3, prefix), only=[promise])
    else:
        with psycopg.connect(dsn) as conn:
            sinkfence_postgres.install(conn)
            conn.execute(TABLE)
        with psycopg_pool.ConnectionPool(dsn, min_size=2, max_size=8, open=True) as pool:
            sink = Once(pool) if module == "modes" else Sink(pool)
            report = exercise_sink(sink, only=[promise], patience=0.3)
    return [result.promise for result in report.failed]
