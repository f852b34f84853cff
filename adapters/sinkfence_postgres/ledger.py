"""Steps that are done once: their entries are made in the transaction that does them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sinkfence.errors import IdempotencyMismatch, NotEnforced, SchemaMismatch
from sinkfence.results import as_json
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token, check_text
from sinkfence_postgres import connections, watch
from sinkfence_postgres.refusals import Meanings, explained
from sinkfence_postgres.statements import Query, named
from sinkfence_postgres.transactions import Attempt, translating

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy

    from sinkfence_postgres.connections import AnyTx

BATCH: Final = 10_000
"""How many entries one transaction of a clean-up deletes."""


GUARDED: Final = " FROM sinkfence.confirm(:job_id, :generation, :owner)"
"""Refuses the statement where its transaction isn't guarded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of one step, as statements. Two at once meet like this:

    one: insert | two: insert waits for one's end | one: commit | two: nothing was inserted, selects, sees it.
    The select is a statement of its own: in one with the insert it would read by a snapshot older than the
    wait. Outside READ COMMITTED the insert raises 40001 then, and the transaction is worth repeating.
    """

    token: Token
    step: str
    request: str | None = None
    """The fingerprint of the request whose step it is: another one may come under the same key."""

    def insert(self) -> Query:
        """Its answer is a row where the step is new. Refused (SF005) where this transaction isn't guarded."""
        # No step has a newline in it.
        fingerprint = self.step if self.request is None else f"{self.step}\n{self.request}"
        return Query(
            "INSERT INTO sinkfence.ledger (scope, key, fingerprint, generation)"
            " SELECT cast(:scope AS pg_catalog.text), cast(:key AS pg_catalog.text),"
            " cast(:fingerprint AS pg_catalog.text), cast(:generation AS bigint)"
            f"{GUARDED} ON CONFLICT (scope, key) DO NOTHING RETURNING 1",
            {**self._key(), **named(self.token), "fingerprint": fingerprint},
            rows=None,
        )

    def update(self, result: str) -> Query:
        """Add the result to an entry of this transaction. Refused (SF005) where the call has ended that."""
        return Query(
            "UPDATE sinkfence.ledger SET result = cast(cast(:result AS pg_catalog.text) AS pg_catalog.json)"  # noqa: S608
            f"{GUARDED} WHERE scope = :scope AND key = :key RETURNING 1",
            {**self._key(), **named(self.token), "result": result},
        )

    def select(self) -> Query:
        """Read an entry that was there before."""
        return Query(
            "SELECT fingerprint, cast(result AS pg_catalog.text) FROM sinkfence.ledger"
            " WHERE scope = :scope AND key = :key",
            self._key(),
        )

    def _key(self) -> dict[str, Any]:
        return {"scope": f"once:{self.token.job_id}", "key": self.token.key(self.step)}

    def recall(self, fingerprint: str, result: str | None) -> Any:
        """Return what `select` has read, if it is of this step."""
        step, _, request = fingerprint.partition("\n")
        if step == self.step and request and self.request not in (None, request):
            reused = IdempotencyMismatch(
                f"step {self.step!r} of job {self.token.job_id!r} was done by a request with the same "
                "Idempotency-Key that asked for something else"
            )
            watch.hear(reused)
            raise reused
        if step != self.step:
            raise IdempotencyMismatch(
                f"the key of step {self.step!r} of job {self.token.job_id!r} is in the ledger for something "
                f"else, {fingerprint!r}: name the occasion in the step"
            )
        if result is None:  # a result that is None is there as JSON's null
            raise NotEnforced(
                f"step {self.step!r} of job {self.token.job_id!r} has an entry without a result: its call is "
                "under way in this transaction, or has ended the one that it was called in"
            )
        return json.loads(result)


def entered(token: Token, step: str) -> Entry:
    """Return the entry of a step, with what the present request asks for, where it is one of its steps."""
    step = check_text("step", step)
    return Entry(token, step, watch.asked(token, step))


def once(tx: AnyTx, bearer: Bearer, step: str, call: Callable[[], Any]) -> Any:
    """Do a step of a job at most once, in this guarded transaction, whoever owns the job by now.

    The first transaction that commits has called `call`, and its result is kept; each later one gets that,
    and calls nothing. A second transaction waits for the first, up to lock_timeout. The step's name alone
    is compared: where a job comes back, it names the occasion ("invoice 2026-05").
    `call` writes through `tx`, in a savepoint: where it raises, both its writes and the entry are undone.

    Returns:
        The result as it was kept, the first time too: a tuple is a list then.

    Args:
        tx: in a transaction that `transaction`, `begin` or `guard` has guarded for this bearer.
        bearer: its token is read now.
        step: 1 to 200 bytes.
        call: returns JSON of at most 64 KiB, nested at most 100 deep.

    Raises:
        NotEnforced: the transaction is not guarded for this bearer, or this step is under way in it: `call`
            was not called. `call` has ended the transaction: no result is kept, and none is made up later.
        IdempotencyMismatch: the key is in the ledger for something else; or it is a step of `Fence.step`, and
            was done by a request that had the same Idempotency-Key and asked for something else.
        SchemaMismatch: as `guard`.
        ValueError, TypeError: the result is too large, or no JSON; as all that `call` raises.
    """
    tx_ = connections.expect(tx, *connections.KINDS)
    entry = entered(token_of(bearer), step)
    attempt = Attempt({entry.token: bearer}, ours=True)
    connections.sync(tx_)
    with translating(attempt), connections.savepoint(tx_) as block:
        if not connections.run(tx_, entry.insert()):
            return entry.recall(*connections.run(tx_, entry.select())[0])
        attempt.ours = False
        result = as_json(call())
        refuse_ended(block)
        connections.sync(tx_)
        attempt.ours = True
        connections.run(tx_, entry.update(result))
        return json.loads(result)
    raise undone()


def refuse_ended(block: Any) -> None:
    """Raise NotEnforced if a step has ended its savepoint, as far as the driver's block knows of it."""
    if not getattr(block, "is_active", True):
        raise NotEnforced(
            "the step has ended the transaction that it was called in: leave COMMIT and ROLLBACK to the block"
        )


def undone() -> Exception:
    """Return psycopg.Rollback for the block around a step that has raised it: the savepoint swallows it."""
    import psycopg

    return psycopg.Rollback()


def clean_ledger(conn: psycopg.Connection[Any] | sqlalchemy.Connection, older_than: timedelta) -> int:
    """Delete the entries that are older, and return their number: their steps could be done again.

    So keep them for longer than anybody may repeat a step. For a superuser, or a role that was granted
    EXECUTE on sinkfence.clean_ledger. Each 10,000 are a transaction, or all are part of an open one.

    Raises:
        ValueError: older_than is not positive.
        SchemaMismatch: sinkfence is not installed here, or this role may not clean up.
    """
    tx: Any = connections.expect(conn, *connections.KINDS)
    query, gone = cleaning(older_than), 0
    with explained(MEANINGS):
        while True:
            with nullcontext() if connections.is_open(tx) else connections.begun(tx):
                batch: int = connections.run(tx, query)[0][0]
            gone += batch
            if batch < BATCH:
                return gone


def cleaning(older_than: timedelta) -> Query:
    """Delete one batch."""
    if older_than <= timedelta(0):
        raise ValueError(f"older_than must be positive, not {older_than}")
    older_than = min(older_than, timedelta(days=365_000))  # the server counts no further back than 4713 BC
    age = "pg_catalog.make_interval(secs => cast(:seconds AS double precision))"
    return Query(
        f"SELECT sinkfence.clean_ledger({age}, :batch)",
        {"seconds": older_than.total_seconds(), "batch": BATCH},
    )


MEANINGS: Final[Meanings] = {
    "42501": lambda said: SchemaMismatch(  # insufficient_privilege
        f"this role may not clean the ledger ({said}): "
        "run GRANT EXECUTE ON FUNCTION sinkfence.clean_ledger TO the role that logs in here, as a superuser"
    )
}
