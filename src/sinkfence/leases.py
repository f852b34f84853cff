"""The lease manager: acquires jobs for this process, keeps them, and arms what their work writes to.

What stands behind it, each in a file of its own: `Leases` may outlive a fork, so that what belongs to one
process is a `Holder`. A `Lease` is what the user sees of one acquisition; what this side knows of it, shared
with the heartbeat, is its `Tenure`; and how long one answer of the store may be trusted is a `Term`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from sinkfence.arming import check_sinks
from sinkfence.grants import Record, Store, check_label
from sinkfence.heartbeat import OnLost
from sinkfence.holder import Holder
from sinkfence.lease import Lease
from sinkfence.process import Process, this_process
from sinkfence.sinks import Sink
from sinkfence.terms import Clock, boot_time, check_seconds, check_ttl
from sinkfence.tokens import check_job_id

log = logging.getLogger("sinkfence")


class Leases:
    """Leases of one store for one process and its threads. It opens nothing before its first use.

    So it may stand at module level and be inherited by a fork: the child starts afresh, and the parent's
    leases are void there.

    Args:
        store: where the counting is kept.
        ttl: how long a lease holds without renewal: a timedelta or seconds, from 0.05 s to 30 days.
        heartbeat: seconds between renewals by `hold`: less than half of the ttl, a third by default.
        owner: a label for people that begins each owner value; host and pid by default.
        on_lost: called as `on_lost(lease, error)`, once per lost lease, on a thread of the heartbeat.

    Raises:
        TypeError, ValueError: an argument out of range. Nothing was opened.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: timedelta | float = 30.0,
        heartbeat: timedelta | float | None = None,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        _clock: Clock = boot_time,
        _pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = store
        self._ttl = check_ttl(ttl)
        self._heartbeat = (
            None if heartbeat is None else check_seconds("heartbeat", heartbeat, 0.001, self._ttl)
        )
        self._label = None if owner is None else check_label(owner)
        self._on_lost = on_lost
        self._clock = _clock
        self._pause = _pause
        self._interval(self._ttl)
        # By process, without a lock: one that another thread held at the fork would stay held in the child.
        self._holders: dict[Process, Holder] = {}
        self._closed = False

    @contextmanager
    def hold(
        self,
        job_id: str,
        *,
        ttl: timedelta | float | None = None,
        wait: timedelta | float = 0.0,
        arm: Iterable[Sink] = (),
    ) -> Generator[Lease]:
        """Acquire the job, keep it by a heartbeat, arm the sinks, run the body; release the job at the end.

        A sink that is ahead of the store although the record is still ours has the store raised above it, and
        all sinks armed again under the new token, at most twice. Nothing is armed once the body runs.

        Args:
            job_id: what must have one writer at a time.
            ttl: this lease's length, in place of the manager's.
            wait: for how many seconds to try, if somebody else holds it.
            arm: what the body writes to. Read what a write depends on only inside the body.

        Raises:
            LeaseHeld: somebody else holds the job.
            JobCompleted: the job is done; its result is on the error.
            StaleToken: a sink has seen a later owner, while arming or in the body.
            LeaseLost: the lease was over before the body could start, or the body ended without an error
                and the job was somebody else's by then.
            NotEnforced: the store forgets what a sink remembers.
        """
        sinks = check_sinks(self._store, arm)
        length = self._length(ttl)
        interval = self._interval(length)
        here = self._open()
        held = here.acquire(check_job_id(job_id), length, _check_wait(wait))
        held = here.arm(held, interval, sinks)
        try:
            yield held.lease
        except BaseException as error:
            here.leave(held, error)
            raise
        here.leave(held, None)

    def acquire(
        self, job_id: str, *, ttl: timedelta | float | None = None, wait: timedelta | float = 0.0
    ) -> Lease:
        """Acquire the job without a heartbeat: it is the caller who renews, arms and releases.

        It never takes part in a transaction of the caller's: rolled back, the number would be issued again.

        Raises:
            LeaseHeld, JobCompleted: as `hold`.
            LeaseLost: the answer took longer than the ttl.
            OutcomeUnknown: no answer. A lease that was granted runs out by its ttl.
        """
        length = self._length(ttl)
        return self._open().acquire(check_job_id(job_id), length, _check_wait(wait)).lease

    def get(self, job_id: str) -> Record | None:
        """Return the job's record, to look at, or None if it was never acquired."""
        return self._store.get(job_id)

    def list(self, prefix: str = "") -> Sequence[Record]:
        """Return the records whose job_id starts with prefix, in bytewise order."""
        return self._store.list(prefix)

    def reopen(self, job_id: str) -> Record:
        """For operators: make a job free and open, whoever holds it and though it is completed.

        Raises:
            KeyError: there is no such job.
        """
        return self._store.reopen(job_id)

    def raise_above(self, job_id: str, n: int) -> Record:
        """For operators, after the store has gone back: make the job free, and its next generation above n.

        Raises:
            GenerationExhausted: no generation would be left.
        """
        return self._store.raise_above(job_id, n)

    def close(self, timeout: float = 10.0) -> None:
        """Release all leases of this process and stop the heartbeat, within `timeout` seconds.

        Stop the work first: what is released may start elsewhere at once.

        Raises:
            ExceptionGroup: of what went wrong, a TimeoutError among it where the store took too long.
        """
        self._closed = True
        here = self._holders.get(this_process())
        errors = here.close(timeout) if here else []
        self._store.close()
        if errors:
            raise ExceptionGroup(
                "not every lease could be released: those left run out by themselves", errors
            )

    def __enter__(self) -> Leases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ExceptionGroup as group:
            if error is None:
                raise
            log.warning("closing after an error: %s", group.exceptions)

    def _here(self) -> Holder:
        process = this_process()
        here = self._holders.get(process)
        if here is None:
            made = Holder(self._store, self._label, self._on_lost, self._clock, self._pause)
            here = self._holders.setdefault(process, made)
        return here

    def _open(self) -> Holder:
        if self._closed:
            raise RuntimeError("these Leases are closed: make new ones")
        return self._here()

    def _length(self, ttl: timedelta | float | None) -> float:
        return self._ttl if ttl is None else check_ttl(ttl)

    def _interval(self, ttl: float) -> float:
        interval = ttl / 3 if self._heartbeat is None else self._heartbeat
        if interval >= ttl / 2:
            raise ValueError(
                f"heartbeat must be less than half of the ttl ({interval:g} s of {ttl:g} s): "
                "one that comes late or fails must not cost the lease"
            )
        return interval


def _check_wait(wait: timedelta | float) -> float:
    return check_seconds("wait", wait, 0.0, math.inf)
