"""The lease manager: acquires jobs for this process, keeps them, and arms what their work writes to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import NoReturn

from sinkfence.flows import drive
from sinkfence.grants import Record, Store
from sinkfence.leases.arming import arm_here, check_sinks
from sinkfence.leases.asking import InThreads
from sinkfence.leases.heartbeat import OnLost
from sinkfence.leases.hold import Hold
from sinkfence.leases.lease import Lease
from sinkfence.leases.means import Means
from sinkfence.leases.per_process import PerProcess, check_prefix, check_store, check_wait
from sinkfence.observe import log
from sinkfence.sinks import Sink
from sinkfence.terms import Clock, boot_time
from sinkfence.tokens import check_job_id


class Leases:
    """Leases of one store for one process and its threads. It opens nothing before its first use.

    So it may stand at module level and be inherited by a fork: the child starts afresh, and the parent's
    leases are void there.

    Args:
        store: where the counting is kept.
        ttl: how long a lease holds without renewal: a timedelta or seconds, from 0.05 s to 30 days.
        heartbeat: seconds between renewals by `hold`: less than half of the ttl, a third by default.
        owner: a label for people that begins each owner value; host and pid by default.
        on_lost: called as `on_lost(lease, error)`, once per lost lease, one after the other, on a
            thread of the heartbeat.

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
        on_lost: OnLost[Lease] | None = None,
        _clock: Clock = boot_time,
        _pause: Callable[[float], object] = time.sleep,
    ) -> None:
        check_store(store)
        means: Means[Lease] = Means(
            store=store,
            asking=InThreads(store),
            beats=store,
            lease=Lease,
            arm=arm_here,
            pause=_pause,
            clock=_clock,
        )
        self._store = store
        self._holders = PerProcess(means, ttl, heartbeat, owner, on_lost)

    def hold(
        self,
        job_id: str,
        *,
        ttl: timedelta | float | None = None,
        wait: timedelta | float = 0.0,
        arm: Collection[Sink] = (),
    ) -> Hold[Lease]:
        """Acquire the job, keep it by a heartbeat, arm the sinks, run the body; release the job at the end.

        A sink that is ahead of the store although the record is still ours has the store raised above it, and
        all sinks armed again under the new token, at most twice. Nothing is armed once the body runs. A store
        that does not answer keeps nobody at the end of the body for more than 15 seconds: the lease runs out.

        Args:
            job_id: what must have one writer at a time.
            ttl: this lease's length, in place of the manager's.
            wait: for how many seconds to try, if somebody else holds it. There is no queue: whoever takes the
                job again at once may always be first.
            arm: what the body writes to. Read what a write depends on only inside the body.

        Raises:
            LeaseHeld: somebody else holds the job.
            JobCompleted: the job is done; its result is on the error.
            StaleToken: a sink has seen a later owner, while arming or in the body.
            LeaseLost: the lease was over before the body could start, or the body ended without an error
                and the job was somebody else's by then.
            NotEnforced: the store forgets what a sink remembers.
        """
        return Hold(self._hold(job_id, ttl, wait, arm))

    @contextmanager
    def _hold(
        self,
        job_id: str,
        ttl: timedelta | float | None,
        wait: timedelta | float,
        arm: Collection[Sink],
    ) -> Generator[Lease]:
        check_sinks(self._store, arm)
        length = self._holders.length(ttl)
        interval = self._holders.interval(length)
        here = self._holders.open()
        held = drive(here.acquire(check_job_id(job_id), length, check_wait(wait)))
        try:
            held = drive(here.arm(held, interval, arm))
            try:
                yield held.lease
            except BaseException as error:
                drive(here.leave(held, error))
                raise
            drive(here.leave(held, None))
        finally:
            here.left(held)

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
        acquiring = self._holders.open().acquire(
            check_job_id(job_id), self._holders.length(ttl), check_wait(wait)
        )
        return drive(acquiring).lease

    def get(self, job_id: str) -> Record | None:
        """Return the job's record, to look at, or None if it was never acquired."""
        return self._store.get(job_id)

    def list(self, prefix: str = "") -> Sequence[Record]:
        """Return the records whose job_id starts with prefix, in bytewise order."""
        return self._store.list(check_prefix(prefix))

    def reopen(self, job_id: str) -> Record:
        """For operators: make a job free and open, whoever holds it and though it is completed.

        Raises:
            KeyError: there is no such job.
        """
        return self._store.reopen(job_id)

    def raise_above(self, job_id: str, n: int) -> Record:
        """For operators, after the store has gone back: make the job free, and its next generation above n.

        Where it is above n already, nothing changes, and whoever holds the job keeps it.

        Raises:
            GenerationExhausted: no generation would be left.
        """
        return self._store.raise_above(job_id, n)

    def close(self, timeout: float = 10.0) -> None:
        """Release all leases of this process and stop the heartbeat, within `timeout` seconds.

        Then the store is closed, which connects again if it is used on. Stop the work first: what is released
        may start elsewhere at once. Who waits for a job by then gets a RuntimeError, within a second.

        Raises:
            ExceptionGroup: of what went wrong, a TimeoutError among it where the store took too long.
        """
        try:
            self._holders.close(timeout)
        finally:
            self._store.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("Leases stay with their process: make them in each, and pass a lease.token")

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
