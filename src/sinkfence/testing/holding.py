"""What every store promises to who holds a lease: its time, and that nobody else can end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final
from unittest import mock

from sinkfence.errors import JobCompleted, LeaseHeld, LeaseLost
from sinkfence.testing.promises import Promise, must, promise, promises_in, refused
from sinkfence.testing.store_harness import HOUR, MOMENT, StoreBench
from sinkfence.tokens import Token

Call = Callable[[Token], object]


@promise("S3 ttl-as-asked")
def ttl_as_asked(bench: StoreBench) -> None:
    """A lease ends one ttl after it was granted or renewed, by the store's clock, which the record shows."""
    grant = bench.store.acquire(bench.job_id, "a", HOUR)
    record = bench.record()
    must(record.lease_until == grant.lease_until, f"granted until {grant.lease_until}, kept is {record}")
    left = record.remaining or 0.0
    must(abs(left - HOUR) < 60, f"{left:g} s are left of {HOUR:g}")
    until = bench.store.renew(grant.token, 2 * HOUR)
    must(bench.record().lease_until == until, "the renewal's end is not the record's")
    gained = (until - grant.lease_until).total_seconds()
    must(abs(gained - HOUR) < 60, f"renewing for twice as long gained {gained:g} s")
    must(until.utcoffset() == timedelta(0), f"{until} is not in UTC")


@promise("S3 client-clock-ignored", "own_clock")
def client_clock_ignored(bench: StoreBench) -> None:
    """A client whose clock is three hours fast or slow takes no live lease, and leaves none too long."""
    token = bench.acquire("a")
    before = bench.record().lease_until
    for error in (3 * HOUR, -3 * HOUR):
        with mock.patch("time.time", partial(_wrong, time.time, error)):
            refused(LeaseHeld, f"acquiring with a clock {error:+g} s off", bench.acquire, "b")
            renewed = bench.store.renew(token, HOUR)
            bench.store.release(token)
            token = bench.acquire("a")
        for until in (renewed, bench.record().lease_until):
            must(
                before is not None and until is not None and abs(until - before) < timedelta(minutes=1),
                f"with a clock {error:+g} s off the lease runs until {until}, and not until {before}",
            )


@promise("S4 renew-by-owner-and-generation")
def renew_by_both(bench: StoreBench) -> None:
    """Renewing is the present owner's alone, by owner *and* generation: anybody else gets LeaseLost."""
    only_the_owner(bench, "renewing", lambda token: bench.store.renew(token, 2 * HOUR))


@promise("S4 renew-keeps-number")
def renew_keeps_number(bench: StoreBench) -> None:
    """Renewing keeps generation and owner, and works on what ran out and nobody took: it runs again."""
    token = bench.lapsed()
    bench.store.renew(token, HOUR)
    bench.harness.let_pass(MOMENT)
    record = bench.record()
    must((record.generation, record.owner) == (token.generation, token.owner), f"renewed: {record}")
    refused(LeaseHeld, "acquiring what was renewed", bench.acquire, "b")


@promise("S4 released-stays-released")
def released_stays(bench: StoreBench) -> None:
    """A renewal that arrives after the release revives nothing; a repeated release succeeds."""
    token = bench.acquire()
    bench.store.release(token)
    bench.store.release(token)
    refused(LeaseLost, "renewing what was released", bench.store.renew, token, HOUR)
    must(not bench.store.renew_many([(token, HOUR)]).renewed, "a batch revived what was released")
    bench.counts(bench.acquire("b"), token.generation)


@promise("S4 batch-tells-apart")
def batch_tells_apart(bench: StoreBench) -> None:
    """A batch renews what is still the asker's, and tells it from what was given back and what was lost."""
    mine, done, gone = (bench.store.acquire(bench.job_id + c, "a", HOUR).token for c in "123")
    bench.store.complete(done, None)
    bench.store.release(gone)
    other = bench.store.acquire(gone.job_id, "b", HOUR).token
    imposter = Token(other.job_id, other.generation, "a")
    answer = bench.store.renew_many([(token, 2 * HOUR) for token in (mine, done, gone, imposter)])
    seen = (set(answer.renewed), set(answer.settled), set(answer.lost))
    must(seen == ({mine}, {done}, {gone, imposter}), f"renewed, settled and lost were {seen}")
    record = bench.store.get(mine.job_id)
    must(record is not None and (record.remaining or 0.0) > HOUR, "the record was not renewed")


@promise("S6 complete-by-owner")
def complete_by_owner(bench: StoreBench) -> None:
    """Completing is the present owner's alone, by owner *and* generation: anybody else gets LeaseLost."""
    only_the_owner(bench, "completing", lambda token: bench.store.complete(token, '"theirs"'))


@promise("S6 release-by-owner")
def release_by_owner(bench: StoreBench) -> None:
    """Releasing is the present owner's alone, by owner *and* generation: anybody else gets LeaseLost."""
    only_the_owner(bench, "releasing", bench.store.release)


@promise("S6 complete-repeatable")
def complete_repeatable(bench: StoreBench) -> None:
    """A completion that is repeated succeeds, with the same result only; releasing then changes nothing."""
    token = bench.acquire()
    bench.store.complete(token, '{"rows": 17}')
    before = bench.state()
    bench.store.complete(token, '{"rows": 17}')
    refused(LeaseLost, "completing with another result", bench.store.complete, token, '{"rows": 18}')
    bench.store.release(token)
    must(bench.state() == before, "the completed record was changed")


@promise("S6 completed-stays")
def completed_stays(bench: StoreBench) -> None:
    """A completed job is not acquired, its result is told, and its number goes on once it is reopened."""
    token = bench.acquire()
    bench.store.complete(token, '{"rows": 17}')
    done = refused(JobCompleted, "acquiring what is completed", bench.acquire, "b")
    must(done.result == {"rows": 17}, f"the result told is {done.result!r}")
    refused(LeaseLost, "renewing what is completed", bench.store.renew, token, HOUR)
    must(bench.store.reopen(bench.job_id).generation == token.generation, "reopening changed the number")
    bench.counts(bench.acquire("b"), token.generation)


def only_the_owner(bench: StoreBench, what: str, call: Call) -> None:
    """Check that a call is refused to predecessors and imposters, changes nothing, and is the owner's."""
    old = bench.lapsed("a")
    token = bench.acquire("b")
    before = bench.state()
    job, number = bench.job_id, token.generation
    for stranger in (
        old,
        Token(job, number, "a"),
        Token(job, old.generation, "b"),
        Token(job, number + 1, "b"),
    ):
        refused(LeaseLost, f"{what} as {stranger.owner!r}, {stranger.generation}", call, stranger)
    must(bench.state() == before, f"{what} by a stranger changed the record")
    call(token)


def _wrong(clock: Callable[[], float], error: float) -> float:
    return clock() + error


holding: Final[tuple[Promise[StoreBench], ...]] = promises_in(globals())
