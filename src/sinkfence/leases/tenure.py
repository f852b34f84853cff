"""What this side knows of one lease: how long it may be trusted, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sinkfence.errors import Conflict, LeaseLost, NotEnforced, StaleToken
from sinkfence.grants import Grant
from sinkfence.leases.once import Once
from sinkfence.process import this_process
from sinkfence.terms import Clock, Term

RELEASED: Final = "it was released"
COMPLETED: Final = "it was completed"
TERM_OVER: Final = "its term ran out before a renewal was confirmed"
FORKED: Final = "this process was forked from the one that holds it"

Loss = LeaseLost | StaleToken
"""How a lease is lost: to a later owner or to time, or because a sink has seen a later owner."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A release or a completion that the store has not refused: it has ended the lease, or may have."""

    how: str
    """RELEASED or COMPLETED."""
    answered_at: float
    in_callers_transaction: bool
    """Then it counts once that is committed, of which nobody tells us."""


class Tenure:
    """One token's term, shared by its lease, the heartbeat and the manager. It ends once, for good."""

    def __init__(self, grant: Grant, asked: float, ttl: float, clock: Clock) -> None:
        self.token: Final = grant.token
        self.ttl: Final = ttl
        self.lost: Final = threading.Event()
        self.ended: Callable[[Loss | None], None] = lambda loss: None
        """Called by whichever thread ends it, after the fact and outside of any lock."""
        self.refusal: StaleToken | None = None
        """What a sink has refused it with, whatever became of that error."""
        self._clock = clock
        self._process = this_process()
        # Reentrant: a signal's handler that releases may interrupt the very thread that holds the lock.
        self._lock = threading.RLock()
        self._term = Term(asked, ttl)
        self._lease_until = grant.lease_until
        self._end: Once[str] = Once()
        self._unanswered = 0
        """How many releases and completions are open requests."""
        self._settled: Settled | None = None
        """The last one that was not refused."""

    @property
    def lease_until(self) -> datetime:
        """The last end that the store confirmed."""
        return self._lease_until

    @property
    def end(self) -> str | None:
        """Why it ended, or None."""
        return self._end.value

    @property
    def may_be_released(self) -> bool:
        """Whether a transaction of the caller's has released it, and perhaps was committed.

        Only within the term: past it, somebody may have taken the job without that.
        """
        ours = self._settled
        return ours is not None and ours.how == RELEASED and self.remaining() > 0

    @property
    def may_be_settled(self) -> bool:
        """Whether a transaction of the caller's has ended it, and is open or was committed."""
        ours = self._settled
        return ours is not None and ours.in_callers_transaction

    @property
    def is_forked(self) -> bool:
        """True in a forked child, where this is only a copy.

        Ask before taking the lock: a thread may have held it at the fork, and nobody will release it.
        """
        return this_process() != self._process

    def remaining(self) -> float:
        """Return the seconds left of the term; not above 0.0 once it ended."""
        if self.is_forked or self.end is not None:
            return 0.0
        return self._term.remaining(self._clock())

    def over(self) -> str | None:
        """Return why the token must not be shown any more, or None."""
        if self.is_forked:
            return FORKED
        return self.end or (TERM_OVER if self.remaining() <= 0 else None)

    def extend(self, asked: float, lease_until: datetime) -> bool:
        """Take a renewal's answer, and return whether it was in time.

        Late: this side was told meanwhile that the lease is over, and that is not taken back; or the new
        term is over by now as well. A term that ran out unnoticed is no loss where the answer is in time:
        the store has renewed the lease, so nobody else had the job.
        """
        with self._lock:
            # A heartbeat and a renew() may overtake each other: the later request has the longer term.
            if asked > self._term.asked and self.end is None:
                self._term, self._lease_until = Term(asked, self.ttl), lease_until
            # While the caller's transaction that has ended the lease is open, the row is locked; once it is
            # committed, there is no lease to renew. A renewal that was asked for since then shows a rollback.
            ours = self._settled
            if ours and ours.in_callers_transaction and asked > ours.answered_at and not self._unanswered:
                self._settled = None
            return self.end is None and self._term.remaining(self._clock()) > 0

    def expire(self) -> None:
        """End it if its term is over."""
        with self._lock:
            # Look and end under the lock. Else a renewal's answer may come in between and count as in time,
            # and nobody would release what is renewed at the store and lost here.
            over = self._term.remaining(self._clock()) <= 0 and self._end.offer(TERM_OVER)
        if over:
            self._announce(LeaseLost(self.token, TERM_OVER))

    def gone(self, why: str, *, settled: bool) -> None:
        """Hear that the heartbeat has read a record that is no longer ours.

        That is no loss if we may have ended the lease ourselves: by a release or a completion that is under
        way, whose change is read before its answer is here; or in a transaction of the caller's, of whose
        commit nobody tells us.

        `settled`: the record was released or completed under this very generation. Else it is somebody
        else's, who after a release of ours may have been quicker than the heartbeat.
        """
        with self._lock:
            unanswered, ours = self._unanswered, self._settled
        if unanswered:
            return  # its answer decides
        if ours is None or not (settled or self.may_be_released):
            self.finish(why, LeaseLost(self.token, why))
        else:
            self.finish(RELEASED if ours.how == RELEASED else why, None)

    @contextmanager
    def settling(self, how: str, conn: object) -> Generator[None]:
        """Surround a request that ends the lease at the store, RELEASED or COMPLETED, while that is open.

        `conn`: the caller's transaction that it is a part of, or None.
        """
        with self._lock:
            self._unanswered += 1
        refused = False
        try:
            yield
        except (LeaseLost, Conflict, NotEnforced, TypeError):
            # TypeError: `conn` is no connection, and nothing was sent.
            refused = True
            raise
        finally:
            with self._lock:
                self._unanswered -= 1
                if not refused:
                    self._settled = Settled(how, self._clock(), conn is not None)

    def finish(self, why: str, loss: Loss | None) -> None:
        """End it, if it hasn't ended."""
        if self._end.offer(why):
            self._announce(loss)

    def _announce(self, loss: Loss | None) -> None:
        if loss is not None:
            self.lost.set()
        self.ended(loss)
