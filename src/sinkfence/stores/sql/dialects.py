"""A statement as a value, and the words in which PostgreSQL and SQLite differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

Row = Sequence[Any]

TABLE: Final = "sinkfence_lease"


@dataclass(frozen=True, slots=True)
class Query:
    """Text with `:name` places, and what goes there."""

    sql: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    many: bool = False
    """Whether its rows may be thousands."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where PostgreSQL and SQLite spell the same thing differently."""

    now: str
    """Seconds since 1970 by the database's clock, at this very moment."""
    clock: str
    """The same instant in the type of lease_until."""
    until: str
    """`:ttl` seconds from now, in the type of lease_until."""
    lease_until: str
    """lease_until in seconds since 1970."""
    minus_infinity: str
    """The lease_until of a job that nobody holds."""
    millis_since_2020: str
    """Whole milliseconds since 2020: what `floor="clock"` counts with."""
    greatest: str
    wanted_rows: str
    """`:wanted`, a JSON array of objects, as rows w(job_id, generation, owner, ttl)."""
    result_in: str
    """`:result` as the type of result."""
    lock_rows: str
    """Locks the rows that a SELECT finds, as an UPDATE of them would."""
    skip_locked: str
    """Locks rows in one order, so that two batches cannot deadlock, and passes over those that are locked."""
    row_address: str
    """The column that finds a row again the fastest, once it is locked."""
    wait_2s: str
    """Always true; evaluating it bounds this transaction's waits for a lock, if its role hasn't done so."""
    wait_100ms: str
    """The same for every role: for a caller that asks again, and holds a connection meanwhile."""
    idle_60s: str
    """Always true; evaluating it bounds how long this transaction, the caller's, may stand idle."""
    bounded: str
    """`wait_2s` in a transaction of our own, `idle_60s` in one of the caller's: see `inside`."""
    sync_commit: str
    """Makes sure, for this transaction alone, that what is acknowledged survives a crash."""


_PG_NOW: Final = "date_part('epoch', clock_timestamp())"  # extract() would go through a numeric

# A lock_timeout of the role's own is respected. set_config(..., true) ends with the transaction, which is
# this statement: no session state, so PgBouncer may pool transactions.
_WAIT_2S: Final = "(current_setting('lock_timeout') <> '0' OR set_config('lock_timeout', '2s', true) <> '')"

POSTGRESQL: Final = Dialect(
    now=_PG_NOW,
    # Not now(), which is the transaction's start, nor statement_timestamp(): both lose the time that was
    # waited for the row's lock (PostgreSQL manual, section 9.9.5).
    clock="clock_timestamp()",
    until="(clock_timestamp() + make_interval(secs => CAST(:ttl AS float8)))",
    lease_until="date_part('epoch', lease_until)",
    minus_infinity="'-infinity'",
    millis_since_2020=f"CAST(floor(({_PG_NOW} - 1577836800) * 1000) AS bigint)",
    greatest="greatest",
    wanted_rows="json_to_recordset(CAST(:wanted AS json)) "
    "AS w(job_id text, generation bigint, owner text, ttl float8)",
    result_in="CAST(:result AS json)",
    lock_rows="FOR NO KEY UPDATE",
    skip_locked="ORDER BY j.job_id FOR NO KEY UPDATE OF j SKIP LOCKED",
    # What was renewed in between is at a place that this statement does not see: passed over, as if locked.
    row_address="ctid",
    wait_2s=_WAIT_2S,
    wait_100ms="set_config('lock_timeout', '100ms', true) <> ''",
    # Its owner may be frozen, and the row locked: nobody could take the job for as long as that lasts.
    idle_60s="(current_setting('idle_in_transaction_session_timeout') <> '0' "
    "OR set_config('idle_in_transaction_session_timeout', '60s', true) <> '')",
    bounded=_WAIT_2S,
    # With `off` an acknowledged generation was gone after kill -9. Only the two that wait for less than this
    # server's disk are raised: setting `on` would weaken remote_apply. COMMIT reads the setting after this.
    sync_commit="CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN set_config('synchronous_commit', 'on', true) END",
)

_LITE_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"

SQLITE: Final = Dialect(
    now=_LITE_NOW,
    clock=_LITE_NOW,
    until=f"({_LITE_NOW} + :ttl)",
    lease_until="lease_until",
    minus_infinity="-9e999",
    millis_since_2020=f"CAST(({_LITE_NOW} - 1577836800) * 1000 AS INTEGER)",
    greatest="max",
    wanted_rows="(SELECT json_extract(value, '$.job_id') AS job_id, "
    "json_extract(value, '$.generation') AS generation, json_extract(value, '$.owner') AS owner, "
    "json_extract(value, '$.ttl') AS ttl FROM json_each(:wanted)) AS w",
    result_in=":result",
    lock_rows="",
    skip_locked="",  # there are no row locks: who writes has the whole file
    row_address="job_id",
    wait_2s="true",
    wait_100ms="true",
    idle_60s="true",
    bounded="true",
    sync_commit="0",
)


def inside(d: Dialect, conn: object) -> Dialect:
    """Return the dialect for a statement inside a transaction of the caller's, if there is one.

    It has settings of its own, which a lock_timeout or a synchronous_commit of ours would change to its end.
    """
    return d if conn is None else replace(d, bounded=d.idle_60s, sync_commit="0")
