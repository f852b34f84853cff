"""What every store promises of its count: one owner at a time, and each number once."""

from __future__ import annotations

from functools import partial
from typing import Final, cast

from sinkfence.errors import GenerationExhausted, LeaseHeld, LeaseLost
from sinkfence.testing.promises import Promise, must, promise, promises_in, race, refused
from sinkfence.testing.store_harness import HOUR, MOMENT, Restorable, StoreBench
from sinkfence.tokens import MAX_GENERATION, Token


@promise("S1 dense-numbers")
def dense_numbers(bench: StoreBench) -> None:
    """Each acquisition gets the next generation, whether the last lease was released or ran out."""
    first = bench.acquire("a")
    bench.counts(first, bench.start)
    bench.store.release(first)
    must(bench.record().generation == first.generation, "releasing changed the generation")
    second = bench.lapsed("b")
    bench.counts(second, first.generation)
    bench.counts(bench.acquire("c"), second.generation)


@promise("S1 raised-above")
def raised_above(bench: StoreBench) -> None:
    """`raise_above` frees the job and lifts its number, or changes nothing, and makes a missing record."""
    above = bench.start + 2**32
    must(bench.store.raise_above(bench.job_id, above).generation == above, "the number was not raised")
    token = bench.acquire()
    bench.counts(token, above)
    left = bench.store.raise_above(bench.job_id, 5)
    must(left.generation == token.generation, "the number was lowered")
    must(left.owner == token.owner, "a lease that is above the number was taken away")
    freed = bench.store.raise_above(bench.job_id, token.generation + 1)
    must(freed.owner is None, "the job was raised, and not freed")
    bench.counts(bench.acquire("b"), token.generation + 1)


@promise("S1 exhausted")
def exhausted(bench: StoreBench) -> None:
    """After 10^15 - 1 there is nothing to acquire, and nothing wraps."""
    for edge in (2**31 - 1, 2**32 - 1, MAX_GENERATION - 1):
        if edge < bench.start:
            continue
        bench.store.raise_above(bench.job_id, edge)
        token = bench.acquire()
        bench.counts(token, edge)
        bench.store.release(token)
    for _ in range(2):
        refused(GenerationExhausted, "an acquisition after the last", bench.acquire)
    must(bench.record().generation == MAX_GENERATION, "the last generation was changed")


@promise("S1 survives-new-handle", "durable")
def survives_new_handle(bench: StoreBench) -> None:
    """A new handle goes on counting, and knows the lease that runs, though its maker is gone."""
    with bench.elsewhere() as first:
        token = first.acquire()
    refused(LeaseHeld, "an acquisition by a new handle", bench.acquire, "b")
    bench.store.release(token)
    bench.counts(bench.acquire("b"), token.generation)


@promise("S1 malformed-refused")
def malformed_refused(bench: StoreBench) -> None:
    """A job_id that is empty, too long, or holds control characters is a ValueError; any other is a job."""
    for job_id in ("", "a" * 201, "é" * 101, "a\nb", "a\x00"):
        refused(ValueError, f"acquiring {job_id!r}", bench.store.acquire, job_id, "a", HOUR)
    for suffix in ("a", "A", "a%", "a_", "a'; --", "é", "e\u0301", "\U0001f512" * 43):
        bench.counts(bench.store.acquire(bench.job_id + suffix, "a", HOUR).token, 0)
    listed = [record.job_id for record in bench.store.list(bench.job_id + "a%")]
    must(listed == [bench.job_id + "a%"], f"under a prefix with a % were listed {listed}")


@promise("S2 live-lease-kept")
def live_lease_kept(bench: StoreBench) -> None:
    """A running lease lets nobody in, whatever ttl they ask with: LeaseHeld says whose, and how long."""
    bench.acquire("a")
    before = bench.state()
    held = refused(LeaseHeld, "acquiring what is held", bench.acquire, "b", MOMENT)
    told = held.owner == "a" and abs(held.retry_after - HOUR) < 60
    must(told, f"told: held by {held.owner!r} for {held.retry_after:g} s")
    must(bench.state() == before, "a refused acquisition changed the record")


@promise("S2 one-winner", "concurrent")
def one_winner(bench: StoreBench) -> None:
    """Of many that acquire at once one wins, the others get LeaseHeld, and no number is left out."""

    def take(owner: str) -> Token:
        with bench.elsewhere() as own:
            return own.acquire(owner)

    before = bench.start
    for turn in range(3):
        answers = race(*(partial(take, f"{turn}:{count}") for count in range(8)))
        won = [answer for answer in answers if isinstance(answer, Token)]
        lost = [answer for answer in answers if type(answer) is LeaseHeld]
        must((len(won), len(lost)) == (1, 7), f"the answers were {answers}")
        bench.counts(won[0], before)
        before = won[0].generation
        bench.store.release(won[0])


@promise("S5 one-acquirer", "concurrent")
def one_acquirer(bench: StoreBench) -> None:
    """Workers that acquire and release as fast as they can never get the same generation."""

    def take(owner: str) -> list[int]:
        numbers: list[int] = []
        with bench.elsewhere() as own:
            for turn in range(5):
                try:
                    token = own.acquire(f"{owner}:{turn}")
                except LeaseHeld:
                    continue
                numbers.append(token.generation)
                own.store.release(token)
        return numbers

    answers = race(*(partial(take, str(count)) for count in range(4)))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    numbers = sorted(number for numbers in answers for number in numbers)
    must(len(set(numbers)) == len(numbers) > 0, f"issued were {numbers}")
    must(bench.record().generation == numbers[-1], f"issued were {numbers}, kept is {bench.record()}")


@promise("S5 lost-answer-found", "loses_answers")
def lost_answer_found(bench: StoreBench) -> None:
    """An acquisition, renewal, completion or release whose answer was lost is found again, and done once."""
    with bench.elsewhere(losing=True) as shaky:
        token = shaky.acquire()
    bench.counts(token, bench.start)
    for turn in ("renew", "release"):
        with bench.elsewhere(losing=True) as shaky:
            shaky.store.renew(token, HOUR) if turn == "renew" else shaky.store.release(token)
    again = bench.acquire("b")
    bench.counts(again, token.generation)
    with bench.elsewhere(losing=True) as shaky:
        shaky.store.complete(again, '"once"')
    must(bench.record().result == "once", f"kept is {bench.record()}")


@promise("S7 reacquire-compares")
def reacquire_compares(bench: StoreBench) -> None:
    """`reacquire_above` replaces the token that is the record's by one above both numbers, and no other."""
    old = bench.lapsed("a")
    token = bench.acquire("b")
    before = bench.state()
    for stale in (old, Token(token.job_id, token.generation, "a"), Token(token.job_id, old.generation, "b")):
        must(bench.store.reacquire_above(stale, 40, "c", HOUR) is None, f"{stale} was let jump ahead")
    must(bench.state() == before, "a refused repair changed the record")
    for above in (token.generation + 40, 1):
        grant = bench.store.reacquire_above(token, above, f"c{above}", HOUR)
        must(grant is not None, "the owner was refused the repair")
        assert grant is not None
        bench.counts(grant.token, max(above, token.generation))
        must(
            bench.store.reacquire_above(token, above, "d", HOUR) is None,
            "a replaced token was replaced again",
        )
        token = grant.token


@promise("S7 backup-put-back", "goes_back")
def backup_put_back(bench: StoreBench) -> None:
    """After a backup was put back, a count by a clock goes on; a plain one can be raised above the lost."""
    first = bench.acquire("a")
    bench.store.release(first)
    put_back = cast("Restorable", bench.harness).backup()
    bench.store.release(bench.acquire("forgotten, too"))
    newest = bench.acquire("forgotten")
    bench.store.release(newest)
    put_back()
    bench.harness.let_pass(MOMENT)  # a clock is behind none that was read before
    refused(LeaseLost, "completing as one that is forgotten", bench.store.complete, newest, None)
    token = bench.acquire("b")
    if bench.store.jumps:
        bench.counts(token, newest.generation)
        return
    bench.counts(token, first.generation)
    grant = bench.store.reacquire_above(token, newest.generation, "c", HOUR)
    must(grant is not None, "the owner was refused the repair")
    assert grant is not None
    bench.counts(grant.token, newest.generation)


counting: Final[tuple[Promise[StoreBench], ...]] = promises_in(globals())
