"""A record as it is read, and the operators' three statements."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from sinkfence.errors import SchemaMismatch
from sinkfence.grants import Record
from sinkfence.stores.sql.dialects import TABLE, Dialect, Query, Row
from sinkfence.tokens import MAX_GENERATION


def look(d: Dialect, job_id: str) -> Query:
    """Return the query of one record."""
    return Query(f"SELECT {_columns(d)} FROM {TABLE} WHERE job_id = :job_id", {"job_id": job_id})


def look_under(d: Dialect, prefix: str) -> Query:
    """Return the query of the records under a prefix, in bytewise order."""
    starts = "substr(job_id, 1, length(:prefix)) = :prefix"
    sql = f"SELECT {_columns(d)} FROM {TABLE} WHERE {starts} ORDER BY job_id"
    return Query(sql, {"prefix": prefix})


def reopen(d: Dialect, job_id: str) -> Query:
    """Return the statement that makes a job free and open."""
    sql = f"""
        UPDATE {TABLE} SET state = 'open', owner = NULL, lease_until = {d.free}, result = NULL
         WHERE job_id = :job_id AND {d.patient}
        RETURNING {_columns(d)}, {d.settled}"""
    return Query(sql, {"job_id": job_id})


def raise_above(d: Dialect, job_id: str, n: int) -> Query:
    """Return the statement that makes a job free, and its generation at least n."""
    sql = f"""
        INSERT INTO {TABLE} AS j (job_id, generation, lease_until, state)
        SELECT CAST(:job_id AS text), CAST(:n AS bigint), {d.free}, 'open' WHERE {d.patient}
        ON CONFLICT (job_id) DO UPDATE
           SET generation = {d.greatest}(j.generation, excluded.generation),
               owner = NULL, lease_until = {d.free}
        RETURNING {_columns(d)}, {d.settled}"""
    return Query(sql, {"job_id": job_id, "n": n})


def record(row: Row) -> Record:
    """Read a record.

    Raises:
        SchemaMismatch: somebody has edited the row to nonsense. Nothing can be acquired from it.
    """
    job_id, generation, state, owner, until, now, result = row[:7]
    free = until == -math.inf
    whole = (
        type(generation) is int
        and 0 <= generation <= MAX_GENERATION
        and state in {"open", "done"}
        and isinstance(until, float)
        and (free or math.isfinite(until))
    )
    try:
        lease_until = None if free else instant(until)
        value: Any = None if result is None else json.loads(result)
    except (TypeError, ValueError, OverflowError):
        whole, lease_until, value = False, None, None
    if not whole:
        raise SchemaMismatch(
            f"the record of job {job_id!r} is damaged (generation {generation!r}, state {state!r}, "
            f"lease_until {until!r}): put it right by hand, never lowering its generation"
        )
    return Record(
        job_id, generation, state, owner, lease_until, 0.0 if free else max(until - now, 0.0), value
    )


def instant(seconds: float) -> datetime:
    """Return an aware UTC datetime, whatever time zones client, server and session are in."""
    return datetime.fromtimestamp(seconds, UTC)


def _columns(d: Dialect) -> str:
    return f"job_id, generation, state, owner, {d.lease_until}, {d.now}, CAST(result AS text)"
