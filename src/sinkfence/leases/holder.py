"""What one process does with leases: takes them, arms sinks under them, leaves them."""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic

from sinkfence import observe
from sinkfence.errors import LeaseHeld, LeaseLost, StaleToken
from sinkfence.flows import Flow, returned_error
from sinkfence.grants import Grant, fresh_owner
from sinkfence.leases import waits
from sinkfence.leases.arming import repairing
from sinkfence.leases.heartbeat import Heartbeat, L, OnLost
from sinkfence.leases.lease import releasing
from sinkfence.leases.means import Means
from sinkfence.leases.tenure import COMPLETED, RELEASED, Loss, Tenure
from sinkfence.leases.threads import start
from sinkfence.observe import log
from sinkfence.sinks import AsyncSink, Sink
from sinkfence.tokens import Token

MOST_REPAIRS: Final = 2
CLOSED: Final = "these Leases are closed: make new ones"


@dataclass(frozen=True, slots=True)
class Held(Generic[L]):
    """One acquisition: what its user sees of it, and what we know of it."""

    lease: L
    tenure: Tenure


class Holder(Generic[L]):
    """Made on first use in each process: after a fork nothing of the parent's is touched."""

    def __init__(self, means: Means[L], label: str | None, on_lost: OnLost[L] | None) -> None:
        self._means = means
        self._asking = means.asking
        self._label = label
        self._clock = means.clock
        self._heartbeat = Heartbeat(means.beats, on_lost, means.clock)
        self._lock = threading.RLock()  # close() may be called by a signal's handler, in the middle of _take
        self._closed = self._can_beat = False
        # Weakly: a lease without a heartbeat that its user has dropped is left to run out.
        self._tenures: weakref.WeakSet[Tenure] = weakref.WeakSet()

    def acquire(self, job_id: str, ttl: float, wait: float) -> Flow[Held[L]]:
        """Acquire the job, trying for `wait` seconds. See `Leases.acquire`."""
        first = self._clock()
        give_up = first + wait
        held_since: float | None = None
        owner = fresh_owner(self._label)  # one for this call: a repetition finds what an earlier sending got
        while True:
            self._refuse_closed()
            asked = self._clock()
            try:
                grant: Grant = yield partial(self._asking.acquire, job_id, owner, ttl)
                break
            except LeaseHeld as held:
                now = self._clock()
                held_since = now if held_since is None else held_since
                if now >= give_up:
                    raise
                retry_after = held.retry_after
            # Within a second, as the holder may release before its lease runs out; at a random moment, as
            # others may be waiting, too.
            look_again = max(min(retry_after, 1.0), 0.02) * random.uniform(0.5, 1.0)  # noqa: S311
            yield partial(self._means.pause, max(min(give_up - self._clock(), look_again), 0.0))
        if grant.remaining is not None:
            # The grant belongs to an earlier request of this same call that reached the store late. The lease
            # began after `first` and before this look: so much of the ttl is gone already.
            asked = max(first, asked + grant.remaining - ttl)
        taken = self._take(grant, asked, ttl)
        try:
            self._refuse_closed()
            if taken.tenure.remaining() <= 0:
                raise LeaseLost(grant.token, "the answer of the lease store took longer than the ttl")
            observe.acquired(grant.token, None if held_since is None else self._clock() - held_since)
        except BaseException:  # even sys.exit() in a signal's handler: the caller will never have this lease
            yield from self._give_up(taken.tenure)
            raise
        return taken

    def arm(self, held: Held[L], interval: float, sinks: Collection[Sink | AsyncSink]) -> Flow[Held[L]]:
        """Start the heartbeat, then arm the sinks; return what is held then, under a new token perhaps.

        Whatever goes wrong, the lease is released and the error raised. What was armed stays armed, which
        is harmless: the next generation is higher.
        """
        repairs = 0
        while True:
            try:
                self._refuse_closed()
                # Before arming: a sink may keep us waiting for longer than the ttl.
                self._heartbeat.add(held.tenure, interval)
                yield from self._try_to_beat()
                for sink in sinks:
                    # The token, not the lease: a sink that refuses a lease ends it, too (`Lease.lose`), and
                    # this refusal may still be answered, below.
                    yield partial(self._means.arm, sink, held.lease.token)
                return held
            except StaleToken as stale:
                if stale.token != held.tenure.token or repairs == MOST_REPAIRS:
                    yield from self._give_up(held.tenure)
                    raise
                repaired = yield from self._replace(held.tenure, stale)
                if repaired is None:
                    raise
                held, repairs = repaired, repairs + 1
            except BaseException:
                yield from self._give_up(held.tenure)
                raise

    def leave(self, held: Held[L], error: BaseException | None) -> Flow[None]:
        """End what the body held, however it ended. See `Leases.hold`.

        Raises:
            LeaseLost: the body ended without an error, and the job is somebody else's.
        """
        tenure = held.tenure
        # The interpreter ends, and nobody has left this body (as of a generator that was never finished). The
        # other threads stand still, with whatever locks they hold.
        if sys.is_finalizing():
            return
        # In a child that was forked inside the body the lease is the parent's, who goes on with it.
        if tenure.is_forked or tenure.end in {RELEASED, COMPLETED}:
            return
        if isinstance(error, StaleToken):
            held.lease.lose(error)
        # The sink has told the lease itself. Its error may leave the body in a group, as another one's cause,
        # or not at all.
        if tenure.refusal is not None:
            raised = yield from self._make_room(tenure, tenure.refusal)
            if raised or error is not None:
                return
        was_ours = tenure.remaining() > 0
        seconds = waits.LEAVING if was_ours else waits.LEAVING_LOST
        # The caller's transaction may still be open and hold the row's lock, so wait only briefly. If it
        # rolls back, nothing ended there, and this release is what counts.
        in_theirs = error is None and was_ours and tenure.may_be_settled
        wait = waits.LEAVING_THEIRS if in_theirs else seconds
        failed = yield from returned_error(releasing(self._means, tenure, seconds=wait))
        if failed is not None:
            # Not released, but within its term: the lease was ours to the end of the body. That work stands,
            # and the lease runs out by itself.
            if error is None and (isinstance(failed, LeaseLost) or not was_ours):
                raise failed
            (log.info if in_theirs else log.warning)("leaving job %r: %s", held.lease.job_id, failed)

    def left(self, held: Held[L]) -> None:
        """Stop renewing what the body held, though a signal's handler may have interrupted `leave`."""
        if not (sys.is_finalizing() or held.tenure.is_forked):
            held.tenure.finish(RELEASED, None)

    def close(self, timeout: float) -> list[Exception]:
        """Release what is held and end the heartbeat's threads; return what went wrong."""
        with self._lock:
            self._closed = True
            held = [tenure for tenure in self._tenures if tenure.remaining() > 0]
        until = self._clock() + timeout
        # End all of them before the first is released: the store may keep us waiting, and what we couldn't
        # release must not go on being renewed.
        for tenure in held:
            tenure.finish(RELEASED, None)
        errors: list[Exception] = []

        def release() -> None:
            for tenure in held:
                try:
                    self._means.beats.release(tenure.token)
                except LeaseLost:
                    pass  # somebody else's by now, which is what releasing is for
                except Exception as error:  # noqa: BLE001 - the others are released all the same
                    errors.append(error)

        # On a thread, as the store may take as long as it likes; a daemon, as then nobody waits for it.
        thread = threading.Thread(target=release, name="sinkfence-close", daemon=True)
        start(thread, release)
        if thread.ident is not None:
            thread.join(timeout)
        if thread.is_alive():
            return [*errors, TimeoutError(f"the lease store did not answer within {timeout:g} s")]
        self._heartbeat.stop(max(until - self._clock(), 0.0))
        return errors

    def _try_to_beat(self) -> Flow[None]:
        # A role that may have one connection only would acquire by it and renew by none: each lease would be
        # lost after a ttl. So connect for a renewal, once. An asynchronous store does so at its first call.
        check = getattr(self._means.store, "check", None)
        if check is not None and not self._can_beat:
            try:
                yield check
            except Exception as error:
                error.add_note(
                    "A lease that is held is renewed over a connection besides the one that acquires."
                )
                raise
        self._can_beat = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    def _take(self, grant: Grant, asked: float, ttl: float) -> Held[L]:
        tenure = Tenure(grant, asked, ttl, self._clock)
        lease = self._means.lease(self._means, tenure)

        def ended(loss: Loss | None) -> None:
            if loss is not None:
                observe.lost(tenure.token, loss)
            self._heartbeat.ended(tenure, lease, loss)

        tenure.ended = ended
        with self._lock:
            self._tenures.add(tenure)
        return Held(lease, tenure)

    def _replace(self, tenure: Tenure, stale: StaleToken) -> Flow[Held[L] | None]:
        # Ended first: the heartbeat would report the old token as lost when it is only replaced.
        tenure.finish("a sink refused to be armed by it", None)
        grant = None
        asked = self._clock()
        try:
            fresh = fresh_owner(self._label)
            grant = yield from repairing(self._means, tenure, stale, fresh, waits.LEAVING)
        finally:
            if grant is None:
                yield from self._release_quietly(tenure.token, waits.LEAVING)
        return self._take(grant, asked, tenure.ttl) if grant else None

    def _give_up(self, tenure: Tenure) -> Flow[None]:
        tenure.finish("it was given up before the body", None)
        yield from self._release_quietly(tenure.token, waits.LEAVING)

    def _make_room(self, tenure: Tenure, stale: StaleToken) -> Flow[bool]:
        # If the store has gone back, the next owner would be refused like this one, and the one after that.
        until = self._clock() + waits.LEAVING
        grant = None
        try:
            fresh = fresh_owner(self._label)
            grant = yield from repairing(self._means, tenure, stale, fresh, waits.LEAVING - waits.RELEASE)
        except Exception as failed:  # noqa: BLE001 - it must not take the place of the body's own error
            log.warning("job %r was not raised above a refusal: %s", tenure.token.job_id, failed)
        left = max(until - self._clock(), waits.RELEASE)
        yield from self._release_quietly(grant.token if grant else tenure.token, left)
        return grant is not None

    def _release_quietly(self, token: Token, seconds: float) -> Flow[None]:
        failed = yield partial(self._asking.release, token, seconds)
        # Somebody else's by now, or it runs out by itself.
        if failed is not None and not isinstance(failed, LeaseLost):
            log.warning("job %r was not released and runs out by itself: %s", token.job_id, failed)
