"""What a store of leases is asked and what it answers: the seam between the counting and the holding."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from sinkfence.errors import LeaseLost
from sinkfence.tokens import Token, check_text

State = Literal["open", "done"]


@dataclass(frozen=True, slots=True)
class Grant:
    """An acquisition: the job is the token's owner's until lease_until, by the store's clock."""

    token: Token
    lease_until: datetime
    """Aware, UTC."""
    remaining: float | None = field(default=None, compare=False)
    """Seconds until then, where a later look has found what an earlier sending was granted; else None."""


@dataclass(frozen=True, slots=True)
class Renewals:
    """What became of a batch of renewals. What is in none of the three was skipped: its row was locked."""

    renewed: Mapping[Token, datetime]
    """The new lease_until of each lease that was renewed."""
    settled: frozenset[Token]
    """Completed or released under this very generation, as the holder's own transaction may have done."""
    lost: Mapping[Token, str]
    """Seen, by reading, to belong to somebody else: and what was seen."""


@dataclass(frozen=True, slots=True)
class Record:
    """A job's record, to look at. Nobody may write with the generation found here: see `Token`."""

    job_id: str
    generation: int
    """The last one issued; 0 before the first acquisition."""
    state: State
    owner: str | None
    """None when free. A completed job keeps its last owner."""
    lease_until: datetime | None
    """Aware, UTC, by the store's clock; None when free."""
    remaining: float | None
    """Seconds until lease_until when the store looked; 0.0 when it is over, None when free."""
    result: Any = None
    """What `complete(result)` recorded."""


def fresh_owner(label: str | None) -> str:
    """Return an owner value for one acquire call: the label, or host and pid, and 128 random bits.

    The label is for people. The bits tell apart two threads, two restarts or two hosts of one name,
    even where a store that went back has issued one number twice.
    """
    label = label or f"{os.uname().nodename[:100]}-{os.getpid()}"
    return f"{label}:{secrets.token_hex(16)}"


def check_label(label: object) -> str:
    """Return an owner label of 1 to 160 UTF-8 bytes, or raise TypeError or ValueError."""
    text = check_text("owner", label)
    if len(text.encode()) > 160:
        raise ValueError("owner must be at most 160 UTF-8 bytes long: 33 more are added")
    return text


def is_settled(token: Token, generation: int | None, owner: str | None, state: str) -> bool:
    """Whether a record was completed or released under this very token, or freed by an operator since."""
    return generation == token.generation and owner == (token.owner if state == "done" else None)


def lease_lost(token: Token, found: Record | None) -> LeaseLost:
    """Return the error for a token that a record is no longer of, saying what was seen."""
    if found is None:
        why = "its record is gone: the store was reset or restored"
    elif found.generation < token.generation:
        why = f"the store has gone back to generation {found.generation}"
    elif found.generation != token.generation:
        why = f"the store has issued generation {found.generation} since"
    elif found.owner == token.owner:
        why = "it was completed before"
    else:
        why = (
            "it was released before" if found.owner is None else "its generation was issued to another owner"
        )
    return LeaseLost(token, why)


class Store(Protocol):
    """Where the counting is kept.

    Each call is one atomic step by the store's own clock. A call that got no answer was repeated by the
    store itself as far as that is safe, which it is: an acquisition is found again by its owner value,
    the others are keyed by owner and generation. What is still undecided then is OutcomeUnknown; a LeaseLost
    that answers a repetition has `earlier_attempt_unknown` set, as the first sending may have released it.
    Errors of the driver pass through: of such a call is known that it took no effect.

    `conn` is a transaction of the caller's: the success is provisional until its commit. Conflict says that
    it began before the lease did and cannot see it, which proves no loss.

    A store that renews over other connections than it acquires by may have `check()`, which connects as
    `renew_many` will, or raises what keeps it from that: a manager's first `hold` calls it before it arms.
    """

    @property
    def durable(self) -> bool:
        """Whether the count outlives this process. One that does not must not arm a sink that does."""
        ...

    @property
    def jumps(self) -> bool:
        """Whether generations follow a clock, so that large steps between them are no sign of damage."""
        ...

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """Give the job to this owner under the next generation, if it is open and nobody's lease runs.

        Raises:
            LeaseHeld, JobCompleted, GenerationExhausted, OutcomeUnknown, SchemaMismatch.
        """
        ...

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """Replace this token by a generation above n and above its own, if the record is still the token's.

        Compare-and-swap on owner and generation: None says that it is the token that is stale.

        Raises:
            GenerationExhausted, OutcomeUnknown.
        """
        ...

    def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """Extend the lease to ttl from now and return its end, also if it ran out and nobody took it.

        Raises:
            LeaseLost, OutcomeUnknown.
        """
        ...

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """Renew each lease by its ttl, skipping locked rows. For the heartbeat: on its own connection."""
        ...

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """Record the job as done, with a result as JSON text. A repetition succeeds.

        Raises:
            LeaseLost, OutcomeUnknown.
        """
        ...

    def release(self, token: Token, conn: object = None) -> None:
        """Give the job back, keeping its generation. A repetition succeeds, and so it does once completed.

        Raises:
            LeaseLost, OutcomeUnknown.
        """
        ...

    def get(self, job_id: str) -> Record | None:
        """Return the job's record, or None if it was never acquired."""
        ...

    def list(self, prefix: str) -> Sequence[Record]:
        """Return the records whose job_id starts with prefix, in bytewise order."""
        ...

    def reopen(self, job_id: str) -> Record:
        """Make a job free and open, keeping its generation.

        Raises:
            KeyError: there is no such job.
        """
        ...

    def raise_above(self, job_id: str, n: int) -> Record:
        """Make the job free and its generation n, so that the next one is above n.

        Where the generation is n or higher already, nothing changes: who holds the job keeps it.

        Raises:
            GenerationExhausted: no generation would be left.
        """
        ...

    def close(self) -> None:
        """Give up connections. The next call opens them again."""
        ...


class AsyncStore(Protocol):
    """A `Store` for an event loop: the same calls, awaited."""

    @property
    def durable(self) -> bool: ...
    @property
    def jumps(self) -> bool: ...
    @property
    def sync(self) -> Store:
        """The same records over connections of its own: for the heartbeat, whose thread no loop holds up."""
        ...

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant: ...
    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None: ...
    async def renew(self, token: Token, ttl: float, conn: object = None) -> datetime: ...
    async def complete(self, token: Token, result: str | None, conn: object = None) -> None: ...
    async def release(self, token: Token, conn: object = None) -> None: ...
    async def get(self, job_id: str) -> Record | None: ...
    async def list(self, prefix: str) -> Sequence[Record]: ...
    async def reopen(self, job_id: str) -> Record: ...
    async def raise_above(self, job_id: str, n: int) -> Record: ...
    async def close(self) -> None:
        """As `Store.close`, in this event loop; and the connections of `sync`."""
        ...
