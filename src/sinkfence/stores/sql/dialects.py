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
    free: str
    """The lease_until of a job that nobody holds."""
    millis: str
    """Whole milliseconds since 2020: what `floor="clock"` counts with."""
    greatest: str
    each: str
    """`:wanted`, a JSON array of objects, as rows w(job_id, generation, owner, ttl)."""
    result_in: str
    """`:result` as the type of result."""
    lock: str
    """Locks the rows that a SELECT finds, as an UPDATE of them would."""
    skip_locked: str
    """Locks rows in one order, so that two batches cannot deadlock, and passes over those that are locked."""
    place: str
    """By which a row that is locked is found again at once."""
    patient: str
    """Always true; evaluating it sets lock_timeout for this transaction."""
    hurried: str
    """The same, and short: for a caller that asks again, and holds a connection meanwhile."""
    mortal: str
    """Always true; evaluating it sets a limit to how long a transaction of the caller's may stand idle."""
    durable: str
    """Makes sure, for this transaction alone, that what is acknowledged survives a crash."""


_PG_NOW: Final = "date_part('epoch', clock_timestamp())"  # extract() would go through a numeric

POSTGRESQL: Final = Dialect(
    now=_PG_NOW,
    # Not now(), which is the transaction's start, nor statement_timestamp(): both lose the time that was
    # waited for the row's lock (PostgreSQL manual, section 9.9.5).
    clock="clock_timestamp()",
    until="(clock_timestamp() + make_interval(secs => CAST(:ttl AS float8)))",
    lease_until="date_part('epoch', lease_until)",
    free="'-infinity'",
    millis=f"CAST(floor(({_PG_NOW} - 1577836800) * 1000) AS bigint)",
    greatest="greatest",
    each="json_to_recordset(CAST(:wanted AS json)) "
    "AS w(job_id text, generation bigint, owner text, ttl float8)",
    result_in="CAST(:result AS json)",
    lock="FOR NO KEY UPDATE",
    skip_locked="ORDER BY j.job_id FOR NO KEY UPDATE OF j SKIP LOCKED",
    # What was renewed in between is at a place that this statement does not see: passed over, as if locked.
    place="ctid",
    # A lock_timeout of the role's own is respected. set_config(..., true) ends with the transaction, which
    # is this statement: no session state, so PgBouncer may pool transactions.
    patient="(current_setting('lock_timeout') <> '0' OR set_config('lock_timeout', '2s', true) <> '')",
    hurried="set_config('lock_timeout', '100ms', true) <> ''",
    # Its owner may be frozen, and the row locked: nobody could take the job for as long as that lasts.
    mortal="(current_setting('idle_in_transaction_session_timeout') <> '0' "
    "OR set_config('idle_in_transaction_session_timeout', '60s', true) <> '')",
    # With `off` an acknowledged generation was gone after kill -9. Only the two that wait for less than this
    # server's disk are raised: setting `on` would weaken remote_apply. COMMIT reads the setting after this.
    durable="CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') "
    "THEN set_config('synchronous_commit', 'on', true) END",
)

_LITE_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"

SQLITE: Final = Dialect(
    now=_LITE_NOW,
    clock=_LITE_NOW,
    until=f"({_LITE_NOW} + :ttl)",
    lease_until="lease_until",
    free="-9e999",
    millis=f"CAST(({_LITE_NOW} - 1577836800) * 1000 AS INTEGER)",
    greatest="max",
    each="(SELECT json_extract(value, '$.job_id') AS job_id, "
    "json_extract(value, '$.generation') AS generation, json_extract(value, '$.owner') AS owner, "
    "json_extract(value, '$.ttl') AS ttl FROM json_each(:wanted)) AS w",
    result_in=":result",
    lock="",
    skip_locked="",  # there are no row locks: who writes has the whole file
    place="job_id",
    patient="true",
    hurried="true",
    mortal="true",
    durable="0",
)


def in_words(d: Dialect, conn: object) -> Dialect:
    """Return the dialect for a statement in the caller's transaction, if there is one.

    There its own settings count, to the end.
    """
    return d if conn is None else replace(d, patient=d.mortal, durable="0")
