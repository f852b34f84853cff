"""What a holder of a lease asks for, as values: one statement each, and what its answer means.

A change matches on owner *and* generation, never on one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sinkfence.errors import GenerationExhausted, JobCompleted, LeaseHeld, LeaseLost
from sinkfence.grants import Grant, Record, Renewals, is_settled, lease_lost
from sinkfence.stores.sql.dialects import TABLE, Dialect, Query, Row
from sinkfence.stores.sql.records import Change, NotSeen, instant, look
from sinkfence.tokens import MAX_GENERATION, Token, check_text, label

_MINE: Final = "job_id = :job_id AND generation = :generation AND owner = :owner AND state = 'open'"


def acquire(d: Dialect, job_id: str, owner: str, ttl: float, *, by_clock: bool) -> Change[tuple[Grant, int]]:
    """Take a job that is open and free: the grant, and the clock's number.

    INSERT ... ON CONFLICT DO UPDATE locks the row first and then evaluates WHERE and SET on its newest
    version (PostgreSQL manual, INSERT): two that take one expired lease are a winner and a loser.
    """
    sql = f"""
        INSERT INTO {TABLE} AS j (job_id, generation, owner, lease_until, state)
        SELECT CAST(:job_id AS text), {_next(d, "1", by_clock)}, CAST(:owner AS text), {d.until}, 'open'
         WHERE {d.wait_100ms}
        ON CONFLICT (job_id) DO UPDATE
           SET generation = {_next(d, "j.generation + 1", by_clock)},
               owner = excluded.owner, lease_until = {d.until}
         WHERE j.state = 'open' AND j.lease_until <= {d.clock}
           AND j.generation BETWEEN 0 AND {MAX_GENERATION - 1}
        RETURNING generation, {d.lease_until}, {d.millis_since_2020}, {d.sync_commit}"""
    owner = check_text("owner", owner)

    def took(row: Row) -> tuple[Grant, int]:
        return Grant(Token(job_id, row[0], owner), instant(row[1])), row[2]

    def refused(found: Record | None) -> tuple[Grant, int]:
        if found and found.owner == owner and found.state == "open" and found.lease_until:
            # Sent twice, because the first answer was lost: the row is what the first sending wrote.
            token = Token(job_id, found.generation, owner)
            return Grant(token, found.lease_until, found.remaining), found.generation
        if found and found.state == "done":
            raise JobCompleted(job_id, found.result)
        left = (found.remaining if found else None) or 0.0
        if found and not left and found.generation == MAX_GENERATION:
            raise GenerationExhausted
        raise LeaseHeld(job_id, found.owner if found else None, left)

    return Change(Query(sql, {"job_id": job_id, "owner": owner, "ttl": ttl}), took, look(d, job_id), refused)


def reacquire_above(
    d: Dialect, token: Token, n: int, owner: str, ttl: float, *, by_clock: bool
) -> Change[Grant | None]:
    """Replace this token by one above n, if the record is its own. The row is locked first, as by renew."""
    above = _next(d, f"{d.greatest}(generation, CAST(:n AS bigint)) + 1", by_clock)
    held = f"""
        SELECT job_id AS mine FROM {TABLE}
         WHERE {_MINE} AND {d.greatest}(generation, CAST(:n AS bigint)) < {MAX_GENERATION}
           AND {d.wait_2s} {d.lock_rows}"""
    sql = f"""
        WITH held AS MATERIALIZED ({held})
        UPDATE {TABLE} SET generation = {above}, owner = CAST(:fresh AS text), lease_until = {d.until}
          FROM held WHERE job_id = mine
        RETURNING generation, {d.lease_until}, {d.sync_commit}"""
    owner = check_text("owner", owner)

    def took(row: Row) -> Grant | None:
        return Grant(Token(token.job_id, row[0], owner), instant(row[1]))

    def refused(found: Record | None) -> Grant | None:
        if found and found.owner == owner and found.state == "open" and found.lease_until:  # sent twice
            return Grant(Token(token.job_id, found.generation, owner), found.lease_until)
        if found and _is_held_by(found, token):
            raise GenerationExhausted if max(found.generation, n) >= MAX_GENERATION else NotSeen()
        return None

    params = {**_identity(token), "n": n, "fresh": owner, "ttl": ttl}
    return Change(Query(sql, params), took, look(d, token.job_id), refused)


def renew(d: Dialect, token: Token, ttl: float) -> Change[datetime]:
    """Extend the lease, also one that ran out and that nobody took.

    The row is locked first: SET alone is evaluated before a wait for a row that somebody has only locked,
    and what was waited would be taken off the lease.
    """
    sql = f"""
        WITH held AS MATERIALIZED (
            SELECT job_id AS mine FROM {TABLE} WHERE {_MINE} AND {d.bounded} {d.lock_rows})
        UPDATE {TABLE} SET lease_until = {d.until} FROM held WHERE job_id = mine
        RETURNING {d.lease_until}, {d.sync_commit}"""

    def refused(found: Record | None) -> datetime:
        raise _refusal(token, found)

    params = {**_identity(token), "ttl": ttl}
    return Change(Query(sql, params), lambda row: instant(row[0]), look(d, token.job_id), refused)


def complete(d: Dialect, token: Token, result: str | None) -> Change[None]:
    """Record the job as done. Owner and generation stay, so that a repetition finds itself done."""
    sql = f"""
        UPDATE {TABLE} SET state = 'done', result = {d.result_in}, lease_until = {d.minus_infinity}
         WHERE {_MINE} AND {d.bounded}
        RETURNING {d.sync_commit}"""

    def refused(found: Record | None) -> None:
        again = found and _is_of(found, token) and found.state == "done"
        # As read again: of two equal keys, 1 and "1" as JSON has them, the database keeps one.
        if not (found and again and json.dumps(found.result) == json.dumps(json.loads(result or "null"))):
            raise _refusal(token, found)

    params = {**_identity(token), "result": result}
    return Change(Query(sql, params), lambda _: None, look(d, token.job_id), refused)


def release(d: Dialect, token: Token) -> Change[None]:
    """Give the job back. The owner goes, else a late renewal would revive it; the generation stays."""
    sql = f"""
        UPDATE {TABLE} SET owner = NULL, lease_until = {d.minus_infinity} WHERE {_MINE} AND {d.bounded}
        RETURNING {d.sync_commit}"""

    def refused(found: Record | None) -> None:
        if not (found and is_settled(token, found.generation, found.owner, found.state)):
            raise _refusal(token, found)

    return Change(Query(sql, _identity(token)), lambda _: None, look(d, token.job_id), refused)


def renew_many(d: Dialect, wanted: Sequence[tuple[Token, float]]) -> Query:
    """Extend the leases of the rows that are not locked: job_id, generation, owner, lease_until of each.

    Without SKIP LOCKED one locked row held up the batch until all its leases had run out; without one
    order two batches deadlocked. Whether it is durable is asked once, and not of each row.
    """
    matching = f"""
        SELECT j.{d.row_address} AS mine, w.ttl AS term FROM {TABLE} AS j JOIN {d.wanted_rows}
            ON j.job_id = w.job_id AND j.generation = w.generation AND j.owner = w.owner
         WHERE j.state = 'open' AND coalesce((SELECT {d.sync_commit}), '') <> '?' {d.skip_locked}"""
    sql = f"""
        WITH matching AS MATERIALIZED ({matching})
        UPDATE {TABLE} SET lease_until = {d.until.replace(":ttl", "term")}
          FROM matching WHERE {TABLE}.{d.row_address} = mine
        RETURNING job_id, generation, owner, {d.lease_until}"""
    rows = [
        {"job_id": token.job_id, "generation": token.generation, "owner": token.owner, "ttl": ttl}
        for token, ttl in wanted
    ]
    return Query(sql, {"wanted": json.dumps(rows)}, many=True)


def look_many(d: Dialect, tokens: Sequence[Token]) -> Query:
    """Read, without a lock, whose the jobs of a batch are: job_id, generation, owner, state."""
    sql = f"""
        SELECT j.job_id, j.generation, j.owner, j.state FROM {TABLE} AS j JOIN {d.wanted_rows}
            ON j.job_id = w.job_id"""
    return Query(sql, {"wanted": json.dumps([_identity(token) for token in tokens])}, many=True)


def sort_out(renewed: Mapping[Token, datetime], left: Sequence[Token], found: Sequence[Row]) -> Renewals:
    """Tell what was not renewed and is ours no longer from what was skipped: only seeing it proves a loss."""
    settled: set[Token] = set()
    lost: dict[Token, str] = {}
    by_job = {row[0]: row[1:] for row in found}
    for token in left:
        generation, owner, state = by_job.get(token.job_id, (None, None, "open"))
        if (generation, owner, state) == (token.generation, token.owner, "open"):
            continue  # its row was locked
        if is_settled(token, generation, owner, state):
            settled.add(token)
        else:
            lost[token] = f"the record says generation {generation}, owner {owner and label(owner)!r}"
    return Renewals(renewed, frozenset(settled), lost)


def _refusal(token: Token, found: Record | None) -> LeaseLost | NotSeen:
    return NotSeen() if found and _is_held_by(found, token) else lease_lost(token, found)


def _is_of(found: Record, token: Token) -> bool:
    return (found.owner, found.generation) == (token.owner, token.generation)


def _is_held_by(found: Record, token: Token) -> bool:
    return _is_of(found, token) and found.state == "open"


def _identity(token: Token) -> dict[str, str | int]:
    return {"job_id": token.job_id, "generation": token.generation, "owner": token.owner}


def _next(d: Dialect, counted: str, by_clock: bool) -> str:
    return f"{d.greatest}({counted}, {d.millis_since_2020})" if by_clock else counted
