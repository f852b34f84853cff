"""A record as it is read, what a change makes of it, and the operators' three statements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from sinkfence.errors import Conflict, SchemaMismatch
from sinkfence.grants import Record
from sinkfence.stores.sql.dialects import TABLE, Dialect, Query, Row
from sinkfence.tokens import MAX_GENERATION

T = TypeVar("T")

_FIRST: Final = -62_135_596_800.0
_LAST: Final = 253_402_300_799.0
"""What a datetime can say, in seconds since 1970."""


class NotSeen(Exception):
    """The record is the token's and open, and the statement that was to change it found nothing to change."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A conditional change of one row and, where it changed nothing, a look that says why.

    Whoever has a connection asks them, `query` first: `took` reads the row that it returns, and where it
    returns none `explain` reads what `look` does.
    """

    query: Query
    took: Callable[[Row], T]
    look: Query
    refused: Callable[[Record | None], T]
    """Raises, or returns where an earlier sending of the same call had made the change."""

    def explain(self, rows: Sequence[Row], *, provisional: bool) -> T:
        """Say why nothing was changed. `provisional`: this is a transaction of the caller's.

        Raises:
            Conflict: that transaction began before the lease did, or does not see the record's newest form.
            NotSeen: as it says, and in a transaction of our own.
        """
        found = record(rows[0]) if rows else None
        if provisional and (found.generation if found else 0) < self.query.params["generation"]:
            # From a snapshot, nothing follows: that the store has gone back is for the heartbeat to see.
            raise Conflict(
                "this transaction's snapshot is older than the lease, and so does not see it: "
                "roll back, and run the whole transaction again"
            )
        try:
            return self.refused(found)
        except NotSeen:
            if not provisional:
                raise
            raise Conflict(
                "this transaction cannot change the record of the lease, which is still there and open: "
                "roll back, and run the whole transaction again"
            ) from None


def look(d: Dialect, job_id: str, *, last: bool = False) -> Query:
    """Return the query of one record.

    `last`: lock the row for it, and so look only after everyone who waits for that row already.
    """
    sql = f"SELECT {_columns(d)} FROM {TABLE} WHERE job_id = :job_id"
    return Query(f"{sql} AND {d.wait_2s} {d.lock_rows}" if last else sql, {"job_id": job_id})


def look_under(d: Dialect, prefix: str) -> Query:
    """Return the query of the records under a prefix, in bytewise order."""
    starts = "substr(job_id, 1, length(:prefix)) = :prefix"
    sql = f"SELECT {_columns(d)} FROM {TABLE} WHERE {starts} ORDER BY job_id"
    return Query(sql, {"prefix": prefix}, many=True)


def reopen(d: Dialect, job_id: str, seen: Record | None = None) -> Change[Record]:
    """Return the change that makes a job free and open; where `seen` is given, only if it is still that one.

    Raises:
        KeyError: there is no such job.
        Conflict: it has another generation, owner or state by now, or its lease, seen run out, was renewed.
    """
    sql = f"""
        UPDATE {TABLE} AS j SET state = 'open', owner = NULL, lease_until = {d.minus_infinity}, result = NULL
         WHERE job_id = :job_id AND {_still(d, seen)} AND {d.wait_2s}
        RETURNING {_columns(d)}, {d.sync_commit}"""

    def refused(found: Record | None) -> Record:
        if found is None:
            raise KeyError(job_id)
        return _made(found, (seen.generation, None, "open") if seen else None)

    return Change(Query(sql, _params(job_id, seen)), record, look(d, job_id), refused)


def raise_above(d: Dialect, job_id: str, n: int, seen: Record | None = None) -> Change[Record]:
    """Return the change that makes a generation n, and the job free; where it is n or more, nothing changes.

    With `seen`, only if the record is still that one.

    Raises:
        Conflict: it has another generation, owner or state by now, or its lease, seen run out, was renewed.
    """
    # Who holds the job under n or more is above whatever had to be passed: the lease is left alone.
    sql = f"""
        INSERT INTO {TABLE} AS j (job_id, generation, lease_until, state)
        SELECT CAST(:job_id AS text), CAST(:n AS bigint), {d.minus_infinity}, 'open' WHERE {d.wait_2s}
        ON CONFLICT (job_id) DO UPDATE
           SET generation = {d.greatest}(j.generation, excluded.generation),
               owner = CASE WHEN j.generation < excluded.generation THEN NULL ELSE j.owner END,
               lease_until = CASE WHEN j.generation < excluded.generation
                                  THEN {d.minus_infinity} ELSE j.lease_until END
         WHERE {_still(d, seen)}
        RETURNING {_columns(d)}, {d.sync_commit}"""

    def refused(found: Record | None) -> Record:
        return _made(found, (max(seen.generation, n), None, seen.state) if seen else None)

    return Change(Query(sql, {**_params(job_id, seen), "n": n}), record, look(d, job_id), refused)


def _still(d: Dialect, seen: Record | None) -> str:
    if seen is None:
        return "true"
    # No owner is empty. One whose lease was seen to have run out may have renewed it: it works.
    ended = "" if seen.remaining else f" AND j.lease_until <= {d.clock}"
    return f"j.generation = :generation AND coalesce(j.owner, '') = :owner AND j.state = :state{ended}"


def _params(job_id: str, seen: Record | None) -> dict[str, Any]:
    if seen is None:
        return {"job_id": job_id}
    return {"job_id": job_id, "generation": seen.generation, "owner": seen.owner or "", "state": seen.state}


def _made(found: Record | None, wanted: tuple[int, None, str] | None) -> Record:
    """Return a record that is as an earlier sending of the same call has made it."""
    if found is not None and (found.generation, found.owner, found.state) == wanted:
        return found
    raise Conflict(
        "this job has another generation, owner or state by now than the one that was seen, "
        "or its lease was renewed after it had run out"
    )


def record(row: Row) -> Record:
    """Read a record.

    Raises:
        SchemaMismatch: somebody has edited the row to nonsense. Nothing can be acquired from it.
    """
    job_id, generation, state, owner, until, now, result = row[:7]
    if isinstance(generation, Decimal):  # a connection of the caller's may have a loader of its own
        generation = int(generation)
    free = until == -math.inf
    whole = (
        type(generation) is int
        and 0 <= generation <= MAX_GENERATION
        and state in {"open", "done"}
        and isinstance(until, float)
    )
    try:
        # An operator's 'infinity' keeps everybody out, and must not hide the other records from a list.
        until = until if free else min(max(until, _FIRST), _LAST)
        lease_until = None if free else instant(until)
        value: Any = None if result is None else json.loads(result)
    except (TypeError, ValueError, OverflowError):
        whole, lease_until, value = False, None, None
    if not whole:
        raise SchemaMismatch(
            f"the record of job {job_id!r} is damaged (generation {generation!r}, state {state!r}, "
            f"lease_until {until!r}): put it right by hand, never lowering its generation"
        )
    remaining = None if free else max(until - now, 0.0)
    return Record(job_id, generation, state, owner, lease_until, remaining, value)


def instant(seconds: float) -> datetime:
    """Return an aware UTC datetime, whatever time zones client, server and session are in."""
    return datetime.fromtimestamp(seconds, UTC)


def _columns(d: Dialect) -> str:
    return f"job_id, generation, state, owner, {d.lease_until}, {d.now}, CAST(result AS text)"
