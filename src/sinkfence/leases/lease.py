"""One lease: an identity that never changes, and a term that lives."""

from __future__ import annotations

import threading
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from sinkfence import observe
from sinkfence.errors import LeaseLost, StaleToken
from sinkfence.flows import Flow, drive
from sinkfence.leases import waits
from sinkfence.leases.means import Means
from sinkfence.leases.tenure import COMPLETED, RELEASED, TERM_OVER, Tenure
from sinkfence.results import as_json
from sinkfence.tokens import Token, idempotency_key


class BaseLease:
    """What a lease shows, for threads and for an event loop."""

    def __init__(self, means: Means[Any], tenure: Tenure) -> None:
        self._means = means
        self._tenure = tenure

    def __repr__(self) -> str:
        token = self._tenure.token
        return f"<Lease of {token.job_id!r}, generation {token.generation}: {self._tenure.over() or 'held'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lease stays with its process: pass lease.token, which sinks take as well")

    @property
    def token(self) -> Token:
        """The token, as long as the term runs. Read it for each effect, and keep none.

        Raises:
            LeaseLost: the term is over, or the lease was released or completed, or this is a forked child.
        """
        over = self._tenure.over()
        if over is None:
            return self._tenure.token
        if over == TERM_OVER:
            self._tenure.expire()
        raise LeaseLost(self._tenure.token, over)

    @property
    def job_id(self) -> str:
        """The job that is leased."""
        return self._tenure.token.job_id

    @property
    def generation(self) -> int:
        """The number of this turn, to show. Sinks take the lease itself."""
        return self._tenure.token.generation

    @property
    def lease_until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock. Aware, UTC."""
        return self._tenure.lease_until

    @property
    def lost(self) -> threading.Event:
        """Set once the lease was found to be lost; a release or a completion is no loss.

        Without a heartbeat it is found at the next use only.
        """
        if not self._tenure.is_forked:
            return self._tenure.lost
        void = threading.Event()
        void.set()
        return void

    def remaining(self) -> float:
        """Return the seconds for which the lease is ours at least; 0.0 when it is over."""
        return max(self._tenure.remaining(), 0.0)

    def key(self, step: str) -> str:
        """Return the idempotency key of a step of this job: the same for every owner. See `Token.key`."""
        return idempotency_key(self.job_id, step)

    def lose(self, reason: StaleToken) -> None:
        """Hear from a sink that it refused this lease's token: it is lost."""
        if reason.token == self._tenure.token and not self._tenure.is_forked:
            self._tenure.refusal = reason
            self._tenure.finish("a destination has refused its token as stale", reason)


class Lease(BaseLease):
    """A job that is ours for a while: a bearer, from `Leases.hold` or `Leases.acquire`.

    Threads may share it. A forked child has only an image of it, which is void there.
    """

    def renew(self, *, conn: object = None) -> None:
        """Extend the lease to its ttl from now, also one that ran out while nobody took the job.

        With `conn` the caller's transaction renews, and the term on this side stays as it is. Commit it
        before the term is over: until then the row is locked, and the heartbeat passes over it.

        Raises:
            LeaseLost: somebody else has the job, or this side was told already that it is lost.
            OutcomeUnknown: no answer: repeat it.
            Conflict: the caller's transaction began before the lease did, and cannot see it: run it again.
        """
        drive(renewing(self._means, self._tenure, conn))

    def complete(self, result: Any = None, *, conn: object = None) -> None:
        """Record the job as done for ever. The store decides, whatever this side thinks of the term.

        Args:
            result: JSON, at most 64 KiB and nested 100 deep, which whoever tries to acquire the job gets with
                JobCompleted.
            conn: a transaction of the caller's: the success is provisional until its commit, which stands
                even where it came too late for the heartbeat. See `renew`.

        Raises:
            LeaseLost: somebody else has the job. The result is on the error.
            OutcomeUnknown: no answer: repeat it, with the same result.
            Conflict: as `renew`.
            ValueError, TypeError: the result is too large, or no JSON.
        """
        drive(completing(self._means, self._tenure, result, conn))

    def release(self, *, conn: object = None) -> None:
        """Give the job back, for the next owner to acquire at once. A repetition changes nothing.

        Raises:
            LeaseLost: somebody else has the job, and not because this side has released it.
            OutcomeUnknown: no answer within 15 seconds: repeat it, or let the lease run out.
            Conflict: as `renew`.
        """
        drive(releasing(self._means, self._tenure, conn))


def renewing(means: Means[Any], tenure: Tenure, conn: object = None) -> Flow[None]:
    """See `Lease.renew`."""
    _refuse_forked(tenure)
    if tenure.end is not None:
        raise LeaseLost(tenure.token, tenure.end)
    asked = means.clock()
    try:
        lease_until = yield partial(means.store.renew, tenure.token, tenure.ttl, conn)
    except LeaseLost as lost:
        tenure.finish(lost.reason, lost)
        raise
    if conn is None:
        observe.renewed(1)
    if conn is None and not tenure.extend(asked, lease_until):
        tenure.expire()
        if tenure.lost.is_set() and (
            failed := (yield partial(means.asking.release, tenure.token, waits.LEAVING))
        ):
            raise failed
        raise LeaseLost(tenure.token, tenure.over() or TERM_OVER)


def completing(means: Means[Any], tenure: Tenure, result: Any, conn: object = None) -> Flow[None]:
    """See `Lease.complete`."""
    _refuse_forked(tenure)
    text = None if result is None else as_json(result)
    with tenure.settling(COMPLETED, conn):
        try:
            yield partial(means.store.complete, tenure.token, text, conn)
        except LeaseLost as lost:
            lost.result = result
            tenure.finish(lost.reason, lost)
            raise
        if conn is None:
            tenure.finish(COMPLETED, None)


def releasing(
    means: Means[Any], tenure: Tenure, conn: object = None, seconds: float | None = None
) -> Flow[None]:
    """See `Lease.release`. `seconds`: for how long the answer is waited for."""
    _refuse_forked(tenure)
    # Asked before `finish`, which ends the term, too.
    was_ours = tenure.remaining() > 0
    released_before = tenure.end == RELEASED or tenure.may_be_released
    if conn is None:
        # Ended here first, there second. The other way round: the record is free, B acquires it, and this
        # side's body still shows its token, and its heartbeat reports as lost what was given back.
        tenure.finish(RELEASED, None)
    with tenure.settling(RELEASED, conn):
        try:
            if conn is None:
                failed = yield partial(means.asking.release, tenure.token, seconds or waits.LEAVING)
                if failed is not None:
                    raise failed
            else:
                yield partial(means.store.release, tenure.token, conn)
        except LeaseLost as lost:
            # The job is B's. That is no loss if we had released it before: in an earlier call, in a request
            # of this call that got no answer, or in a transaction of the caller's. But once the term is over,
            # B may have acquired it because it had run out, and that is a loss.
            released_before = released_before or (was_ours and lost.earlier_attempt_unknown)
            if conn is not None or not released_before:
                raise


def _refuse_forked(tenure: Tenure) -> None:
    if tenure.is_forked:
        raise LeaseLost(tenure.token, tenure.over() or "")
