"""A store on one dictionary, and what becomes of it when one thing is wrong."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime

from sinkfence.errors import JobCompleted, LeaseHeld
from sinkfence.grants import Grant, Renewals
from sinkfence.stores.memory import MemoryStore
from sinkfence.testing import HandClock, StoreCapabilities
from sinkfence.tokens import Token

CLAIMS = StoreCapabilities(durable=True, concurrent=True, own_clock=True, loses_answers=True, goes_back=True)


class Store(MemoryStore):
    """A MemoryStore whose records are shared by its handles, as a database's are."""

    def __init__(self, there):
        super().__init__(clock=there.clock)
        self.there = there
        self._rows, self._lock, self._epoch = there.rows, there.lock, there.epoch
        self.losing = False

    def row(self, job_id):
        return self._rows[job_id]

    def acquire(self, job_id, owner, ttl):
        if self.losing:  # the answer is lost, and it is sent again
            super().acquire(job_id, owner, ttl)
            self.losing = False
            return self.found(job_id, owner, ttl)
        return super().acquire(job_id, owner, ttl)

    def found(self, job_id, owner, ttl):
        row = self.row(job_id)
        return Grant(Token(job_id, row.generation, owner), self._instant(row.until))

    def renew(self, token, ttl, conn=None):
        return self.sent(super().renew, token, ttl)

    def release(self, token, conn=None):
        self.sent(super().release, token)

    def complete(self, token, result, conn=None):
        self.sent(super().complete, token, result)

    def sent(self, call, *args):
        if self.losing:
            self.losing = False
            call(*args)
        return call(*args)


class There:
    """What outlives the handles."""

    def __init__(self):
        self.clock, self.rows, self.lock = HandClock(), {}, threading.RLock()
        self.epoch = datetime(2026, 5, 1, tzinfo=UTC)
        self.windows = {}
        self.turn = threading.Lock()

    def window(self, workers):
        return self.windows.setdefault(workers, threading.Barrier(workers))


class Harness:
    """How to use it, and the broken ones."""

    def __init__(self, kind=Store, capabilities=CLAIMS):
        self.kind, self.capabilities = kind, capabilities
        self.there = There()

    def open(self, *, losing=False):
        store = self.kind(self.there)
        store.losing = losing
        return store

    def let_pass(self, seconds):
        self.there.clock.advance(seconds)

    def backup(self):
        rows, saved = self.there.rows, deepcopy(dict(self.there.rows))

        def restore():
            rows.clear()
            rows.update(deepcopy(saved))

        return restore


class ByClock(Store):
    """Its numbers are the milliseconds of its clock, or the next one."""

    jumps = True

    def _grant(self, job_id, row, generation, owner, ttl):
        return super()._grant(job_id, row, max(generation, self.floor()), owner, ttl)

    def floor(self):
        return int(self.there.clock() * 1000)


class ClockStandsStill(ByClock):
    """It is found when the store goes back only."""

    def floor(self):
        return 10**12


class RepairsTooLow(Store):
    def reacquire_above(self, token, n, owner, ttl):
        return super().reacquire_above(token, n - 1, owner, ttl)


class ReusesNumbers(Store):
    def release(self, token, conn=None):
        super().release(token)
        self.row(token.job_id).generation -= 1


class LeavesNumbersOut(Store):
    def acquire(self, job_id, owner, ttl):
        try:
            return super().acquire(job_id, owner, ttl)
        except LeaseHeld:
            self.row(job_id).generation += 1
            raise


class LowersByRaising(Store):
    def raise_above(self, job_id, n):
        super().raise_above(job_id, n)
        self.row(job_id).generation = n
        return self.get(job_id)


class Wraps(Store):
    def _grant(self, job_id, row, generation, owner, ttl):
        return super()._grant(job_id, row, generation if generation < 10**15 else 1, owner, ttl)


class ThirtyTwoBits(Store):
    def _grant(self, job_id, row, generation, owner, ttl):
        return super()._grant(job_id, row, (generation - 1) % (2**32 - 1) + 1, owner, ttl)


class Forgets(Store):
    def __init__(self, there):
        super().__init__(there)
        self._rows = {}


class TakesAnyId(Store):
    def acquire(self, job_id, owner, ttl):
        return super().acquire("".join(filter(str.isprintable, job_id))[:100] or "none", owner, ttl)


class ListsByPattern(Store):
    def list(self, prefix):
        return super().list(prefix.rstrip("%_"))


class Steals(Store):
    def acquire(self, job_id, owner, ttl):
        if job_id in self._rows:
            self.row(job_id).until = float("-inf")
        return super().acquire(job_id, owner, ttl)


class StealsByItsOwnTtl(Store):
    """Takes what was acquired longer ago than the asking side's ttl."""

    def acquire(self, job_id, owner, ttl):
        row = self._rows.get(job_id)
        if row and row.until - self._clock() > ttl:
            row.until = float("-inf")
        return super().acquire(job_id, owner, ttl)


class RenewsNothing(Store):
    def renew(self, token, ttl, conn=None):
        before = self.row(token.job_id).until if token.job_id in self._rows else 0.0
        answer = super().renew(token, ttl)
        self.row(token.job_id).until = before
        return answer


class LooksThenTakes(Store):
    """Reads the row, and takes the job in a step of its own."""

    workers = 8

    def acquire(self, job_id, owner, ttl):
        record = self.get(job_id)
        if record and record.state == "done":
            raise JobCompleted(job_id, record.result)
        if record and record.remaining:
            raise LeaseHeld(job_id, record.owner, record.remaining)
        with suppress(threading.BrokenBarrierError):  # as it is once all have stood in the window
            self.there.window(self.workers).wait(10)
            self.there.window(self.workers).abort()
        with self._locked():
            row = self._rows.setdefault(job_id, type(self._new())())
            return self._grant(job_id, row, row.generation + 1, owner, ttl)

    def _new(self):
        store = MemoryStore()
        store.raise_above("x", 1)
        return store._rows["x"]


class CountsOutsideTheLock(Store):
    """Takes the job in one step, when the one before has gone, by a number that it has read before."""

    workers = 4

    def acquire(self, job_id, owner, ttl):
        record = self.get(job_id)
        number = record.generation if record else 0
        with suppress(threading.BrokenBarrierError):  # as it is once all have stood in the window
            self.there.window(self.workers).wait(10)
            self.there.window(self.workers).abort()
        if not self.there.turn.acquire(timeout=10):
            raise LeaseHeld(job_id, None, 1.0)
        super().acquire(job_id, owner, ttl)
        self.row(job_id).generation = number + 1
        return self.found(job_id, owner, ttl)

    def release(self, token, conn=None):
        super().release(token)
        self.there.turn.release()


class HalfTheTtl(Store):
    def _grant(self, job_id, row, generation, owner, ttl):
        return super()._grant(job_id, row, generation, owner, ttl / 2)


class ClientClock(Store):
    """Passes the instant that its client took, as the harness's clock read by time.time would be."""

    def __init__(self, there):
        super().__init__(there)
        begun = time.time()
        self._clock = lambda: there.clock() + time.time() - begun


class RenewsWithoutOwner(Store):
    def renew(self, token, ttl, conn=None):
        row = self._rows.get(token.job_id)
        return super().renew(replace(token, owner=row.owner) if row and row.owner else token, ttl)


class RenewsWithoutGeneration(Store):
    def renew(self, token, ttl, conn=None):
        generation = self.row(token.job_id).generation
        return super().renew(replace(token, generation=generation), ttl)


class RenewsAsNew(Store):
    def renew(self, token, ttl, conn=None):
        answer = super().renew(token, ttl)
        self.row(token.job_id).generation += 1
        return answer


class RenewsLiveOnesOnly(Store):
    def renew(self, token, ttl, conn=None):
        if token.job_id in self._rows and self.row(token.job_id).until <= self._clock():
            token = replace(token, owner="nobody")
        return super().renew(token, ttl)


class ReleaseKeepsOwner(Store):
    def release(self, token, conn=None):
        super().release(token)
        self.row(token.job_id).owner = token.owner


class BatchByJob(Store):
    def renew_many(self, wanted):
        answer = super().renew_many(wanted)
        lost = {token: self.lifted(token) for token in answer.lost}
        return Renewals({**answer.renewed, **lost}, answer.settled, {})

    def lifted(self, token):
        row = self._rows.get(token.job_id)
        row.until = self._clock() + 7200
        return self._instant(row.until)


class CompletesForAnybody(Store):
    def complete(self, token, result, conn=None):
        row = self.row(token.job_id)
        super().complete(Token(token.job_id, row.generation, row.owner or token.owner), result)


class CompletesWithoutGeneration(Store):
    def complete(self, token, result, conn=None):
        super().complete(replace(token, generation=self.row(token.job_id).generation), result)


class ReleasesForAnybody(Store):
    def release(self, token, conn=None):
        row = self.row(token.job_id)
        super().release(Token(token.job_id, row.generation, row.owner or token.owner))


class CompleteClearsOwner(Store):
    def complete(self, token, result, conn=None):
        super().complete(token, result)
        self.row(token.job_id).owner = None


class CompletesOverAResult(Store):
    def complete(self, token, result, conn=None):
        row = self._rows.get(token.job_id)
        if row and row.state == "done" and (row.owner, row.generation) == (token.owner, token.generation):
            row.result = result
            return
        super().complete(token, result)


class CompleteDeletes(Store):
    def complete(self, token, result, conn=None):
        super().complete(token, result)
        del self._rows[token.job_id]


class ReopenCountsAnew(Store):
    def reopen(self, job_id):
        super().reopen(job_id)
        self.row(job_id).generation = 0
        return self.get(job_id)


class ReleasesOnce(Store):
    def release(self, token, conn=None):
        if self.row(token.job_id).owner is None:
            self._held(token)
        super().release(token)


class RepairsAnybody(Store):
    def reacquire_above(self, token, n, owner, ttl):
        row = self.row(token.job_id)
        return super().reacquire_above(Token(token.job_id, row.generation, row.owner), n, owner, ttl)


class RepairsByOne(Store):
    def reacquire_above(self, token, n, owner, ttl):
        return super().reacquire_above(token, 0, owner, ttl)


class SentAgainAnew(Store):
    """Takes the second sending for another acquisition, and its own lease for somebody else's."""

    def found(self, job_id, owner, ttl):
        return self.acquire(job_id, owner, ttl)


class GrantsToAnother(Store):
    """One owner value for all acquisitions of a handle."""

    def acquire(self, job_id, owner, ttl):
        grant = super().acquire(job_id, owner, ttl)
        self.row(job_id).owner = "the manager"
        return Grant(replace(grant.token, owner="the manager"), grant.lease_until)


BROKEN = {
    ReusesNumbers: "S1 dense-numbers",
    GrantsToAnother: "S1 dense-numbers",
    LowersByRaising: "S1 raised-above",
    Wraps: "S1 exhausted",
    ThirtyTwoBits: "S1 exhausted",
    Forgets: "S1 survives-new-handle",
    TakesAnyId: "S1 malformed-refused",
    ListsByPattern: "S1 malformed-refused",
    Steals: "S2 live-lease-kept",
    StealsByItsOwnTtl: "S2 live-lease-kept",
    RenewsNothing: "S4 renew-keeps-number",
    LooksThenTakes: "S2 one-winner",
    LeavesNumbersOut: "S2 one-winner",
    HalfTheTtl: "S3 ttl-as-asked",
    ClientClock: "S3 client-clock-ignored",
    RenewsWithoutOwner: "S4 renew-by-owner-and-generation",
    RenewsWithoutGeneration: "S4 renew-by-owner-and-generation",
    RenewsAsNew: "S4 renew-keeps-number",
    RenewsLiveOnesOnly: "S4 renew-keeps-number",
    ReleaseKeepsOwner: "S4 released-stays-released",
    BatchByJob: "S4 batch-tells-apart",
    CountsOutsideTheLock: "S5 one-acquirer",
    SentAgainAnew: "S5 lost-answer-found",
    CompletesForAnybody: "S6 complete-by-owner",
    CompletesWithoutGeneration: "S6 complete-by-owner",
    ReleasesForAnybody: "S6 release-by-owner",
    CompleteClearsOwner: "S6 complete-repeatable",
    CompletesOverAResult: "S6 complete-repeatable",
    CompleteDeletes: "S6 completed-stays",
    ReopenCountsAnew: "S6 completed-stays",
    ReleasesOnce: "S4 released-stays-released",
    RepairsAnybody: "S7 reacquire-compares",
    RepairsTooLow: "S7 backup-put-back",
    ClockStandsStill: "S7 backup-put-back",
    RepairsByOne: "S7 reacquire-compares",
}
