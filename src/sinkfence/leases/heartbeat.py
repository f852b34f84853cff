"""The heartbeat: renews the leases of one `Leases` in batches, and tells when one is lost.

It is three threads, so that none waits for another: one sends renewals and may be held up by the store; one
watches the terms; one runs the callbacks, and may be held up by those. Each ends when it has nothing left
to do.

A batch is sent on a thread of its own. Should one server process stand still, the thread is left behind
with its connection, and the next batch goes over a new one, while the terms still run.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from sinkfence import observe
from sinkfence.errors import OutcomeUnknown
from sinkfence.grants import Store
from sinkfence.leases import waits
from sinkfence.leases.asking import within
from sinkfence.leases.lease import BaseLease
from sinkfence.leases.tenure import Loss, Tenure
from sinkfence.leases.threads import start
from sinkfence.observe import log
from sinkfence.terms import Clock

L = TypeVar("L", bound=BaseLease)

OnLost = Callable[[L, Loss], object]

MOST_LEFT_BEHIND: Final = 3
"""Batches without an answer. Then nothing is sent until one is answered or its connection ends: a store that
answers nobody is not cured by more connections."""

LONGEST_WAIT: Final = 5.0
"""Seconds. A wait's clock may stand still while the machine sleeps, and the terms don't."""


@dataclass(slots=True)
class _Beat:
    interval: float
    due: float


class Heartbeat(Generic[L]):
    """Renews and watches the tenures that it was given, on threads that it starts when there are some."""

    def __init__(self, store: Store, on_lost: OnLost[L] | None, clock: Clock) -> None:
        self._store = store
        self._on_lost = on_lost
        self._clock = clock
        # Enter the lock itself, by `with`, and not the Condition: that is entered and left by Python code,
        # where a signal's handler may raise. The lock stayed locked then, and no lease was renewed any more.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._beating: dict[Tenure, _Beat] = {}
        self._losses: deque[tuple[L, Loss]] = deque()
        self._left_behind = 0
        self._renewing: threading.Thread | None = None
        self._watching: threading.Thread | None = None
        self._telling: threading.Thread | None = None
        # Until when those two sleep; 0.0 while they are awake. A new lease wakes them only if it can't wait:
        # to wake both for each of thousands of leases is dear.
        self._renews_at = self._watches_at = 0.0

    def add(self, tenure: Tenure, interval: float) -> None:
        """Renew this one every `interval` seconds from now on, until it ends."""
        with self._lock:
            now = self._clock()
            self._beating[tenure] = _Beat(interval, now + interval)
            # The lease may have ended before it was added, as another thread has closed its manager. Then
            # `ended` was called before, and nobody would take it out again. Who ends it from now on waits for
            # this lock first; a signal's handler on this very thread doesn't, but finds what was added.
            if tenure.end is not None:
                self._beating.pop(tenure, None)
                return
            if not _runs(self._renewing):
                self._renewing = self._start(self._renew)
            if not _runs(self._watching):
                self._watching = self._start(self._watch)
            if now + interval < self._renews_at or now + tenure.remaining() < self._watches_at:
                self._changed.notify_all()

    def ended(self, tenure: Tenure, lease: L, loss: Loss | None) -> None:
        """Stop renewing this one and, if it was lost, have it told: once, on a thread of the heartbeat."""
        with self._lock:
            self._beating.pop(tenure, None)
            if loss is not None and self._on_lost is not None:
                self._losses.append((lease, loss))
                if not _runs(self._telling):
                    try:
                        self._telling = self._start(self._tell)
                    except (
                        RuntimeError
                    ) as error:  # too many threads, or Python ends; the next loss tries again
                        log.error("on_lost of job %r has to wait: %s", lease.job_id, error)
            if not self._beating:
                self._changed.notify_all()

    def beat(self) -> None:
        """Renew in one batch each lease that is due, or nearly due, and whose term still runs."""
        with self._lock:
            asked = self._clock()
            due = {
                tenure: beat
                for tenure, beat in self._beating.items()
                if beat.due <= asked + beat.interval / 4
            }
            for beat in due.values():
                beat.due = asked + beat.interval
        # Nothing is sent for a lease whose term is over: the watching thread is about to tell its loss.
        batch = {tenure: beat for tenure, beat in due.items() if tenure.remaining() > 0}
        if not batch:
            return
        if self._left_behind >= MOST_LEFT_BEHIND:
            self._again_soon([*batch.values()])
            log.warning("the lease store has not answered %d batches of renewals", MOST_LEFT_BEHIND)
            return
        shortest = min(tenure.ttl for tenure in batch)
        try:
            within(
                max(shortest * waits.BATCH, waits.BATCH_AT_LEAST),
                partial(self._send, batch, asked),
                self._came_back,
            )
        except OutcomeUnknown:
            log.warning(
                "renewal of %d lease(s) has no answer: tried again over another connection", len(batch)
            )
            with self._lock:
                self._left_behind += 1
                hopeless = self._left_behind == MOST_LEFT_BEHIND
                for beat in batch.values():
                    beat.due = self._clock()
            # Not at the first batch without an answer: over a slow network that one is about to come, and to
            # log in anew would take longer.
            if hopeless:
                self._store.close()

    def _came_back(self, _: object) -> None:
        with self._lock:
            self._left_behind -= 1

    def _send(self, batch: dict[Tenure, _Beat], asked: float) -> None:
        try:
            answer = self._store.renew_many([(tenure.token, tenure.ttl) for tenure in batch])
        except BaseException as error:  # noqa: BLE001 - whatever it is: a store out of reach is no loss yet
            self._again_soon(list(batch.values()))
            log.warning(
                "renewal of %d lease(s) failed, tried again until the term is over: %s", len(batch), error
            )
            return
        observe.renewed(len(answer.renewed))
        known = answer.settled.union(answer.renewed)
        self._again_soon([beat for tenure, beat in batch.items() if tenure.token not in known])
        for tenure in batch:
            token = tenure.token
            if token in answer.renewed:
                if not tenure.extend(asked, answer.renewed[token]):
                    self._give_back(tenure)
            elif token in answer.settled:
                tenure.gone("it was released or completed", settled=True)
            elif token in answer.lost:
                tenure.gone(answer.lost[token], settled=False)

    def look(self) -> None:
        """End what has run out."""
        with self._lock:
            over = [tenure for tenure in self._beating if tenure.remaining() <= 0]
        for tenure in over:
            tenure.expire()
        with self._lock:
            for tenure in over:
                if tenure.end is not None:  # a signal's handler may have kept `ended` from being called
                    self._beating.pop(tenure, None)

    def tell(self) -> None:
        """Run the callbacks of what was lost, one after the other."""
        while self._losses:
            lease, loss = self._losses.popleft()
            try:
                if self._on_lost is not None:
                    self._on_lost(lease, loss)
            except BaseException:  # noqa: BLE001 - their sys.exit() would end this thread, and no later loss be told
                log.exception("on_lost failed for %r", lease)

    def stop(self, timeout: float) -> None:
        """Wait, for `timeout` seconds at most, for the threads to end; what was added has ended before."""
        until = self._clock() + timeout
        for thread in (self._renewing, self._watching, self._telling):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(until - self._clock(), 0.0))

    def _again_soon(self, beats: list[_Beat]) -> None:
        # Not at once and not together: each try may find the row locked, or the store down.
        with self._lock:
            for beat in beats:
                beat.due = self._clock() + beat.interval * random.uniform(0.1, 0.3)  # noqa: S311 - jitter

    def _give_back(self, tenure: Tenure) -> None:
        tenure.expire()
        try:
            if tenure.lost.is_set():
                self._store.release(tenure.token)
        except Exception as error:  # noqa: BLE001 - it runs out by itself
            log.warning("a renewal that came too late could not be released: %s", error)

    @staticmethod
    def _start(run: Callable[[], None]) -> threading.Thread:
        # A daemon: at the interpreter's exit it stops, and the leases run out.
        thread = threading.Thread(target=run, name="sinkfence-heartbeat", daemon=True)
        start(thread)
        return thread

    def _renew(self) -> None:
        while True:
            with self._lock:
                while self._beating:
                    wait = min(beat.due for beat in self._beating.values()) - self._clock()
                    if wait <= 0:
                        break
                    self._renews_at = self._clock() + wait
                    self._changed.wait(min(wait, LONGEST_WAIT))
                    self._renews_at = 0.0
                else:
                    self._renewing = None
                    return
            self._whatever_comes(self.beat)

    def _watch(self) -> None:
        while True:
            with self._lock:
                while self._beating:
                    wait = min(tenure.remaining() for tenure in self._beating)
                    if wait <= 0:
                        break
                    self._watches_at = self._clock() + wait
                    self._changed.wait(min(wait, LONGEST_WAIT))
                    self._watches_at = 0.0
                else:
                    self._watching = None
                    return
            self._whatever_comes(self.look)

    def _tell(self) -> None:
        while True:
            with self._lock:
                if not self._losses:
                    self._telling = None
                    return
            self._whatever_comes(self.tell)

    def _whatever_comes(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - with this thread all leases of the process would end
            log.exception("the heartbeat goes on")
            with self._lock:
                self._changed.wait(0.1)


def _runs(thread: threading.Thread | None) -> bool:
    # A thread with nothing left to do has set its field to None, under the lock. One that an error has ended
    # has not: another one must take its place.
    return thread is not None and thread.is_alive()
