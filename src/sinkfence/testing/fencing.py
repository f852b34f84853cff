"""What every sink promises of its mark: the newest owner's writes pass, and nobody else's."""

from __future__ import annotations

from functools import partial
from typing import Final

from sinkfence.errors import GenerationConflict, LeaseLost, NotArmed, StaleToken
from sinkfence.testing.bearers import fake_lease
from sinkfence.testing.clock import HandClock
from sinkfence.testing.promises import Promise, must, promise, promises_in, race, refused
from sinkfence.testing.sink_harness import SinkBench
from sinkfence.tokens import MAX_GENERATION, Token

EDGES: Final = (1, 9, 10, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 10**15 - 2, MAX_GENERATION)
"""Where text, single precision, 32 bits and their sign go wrong."""


@promise("D1 stale-refused")
def stale_refused(bench: SinkBench) -> None:
    """A write below the mark raises StaleToken, with its token and the mark's number, and changes nothing."""
    old = bench.armed(7)
    bench.write(old, "old")
    new = bench.armed(8)
    bench.write(new, "new")
    stale = refused(StaleToken, "a write of 7 after one of 8", bench.write, old, "late")
    must(stale.token == old and stale.mark in (None, 8), f"told {stale.token}, mark {stale.mark}")
    bench.truth_is("old", "new")


@promise("D1 equal-accepted")
def equal_accepted(bench: SinkBench) -> None:
    """An owner writes more than once: the mark's own number passes for the mark's own owner."""
    token = bench.armed(7)
    for value in ("1", "2", "3"):
        bench.write(token, value)
    bench.truth_is("1", "2", "3")


@promise("D1 conflict-refused")
def conflict_refused(bench: SinkBench) -> None:
    """The mark's number under another owner raises GenerationConflict, for a write and for arming."""
    first, second = bench.armed(7, "a"), bench.token(7, "b")
    bench.write(first, "first")
    refused(GenerationConflict, "a write of another owner's 7", bench.write, second, "second")
    refused(GenerationConflict, "arming another owner's 7", bench.arm, second)
    bench.write(first, "again")
    bench.truth_is("first", "again")


@promise("D1 large-generations")
def large_generations(bench: SinkBench) -> None:
    """Generations are compared as integers, up to 10^15 - 1 and across every edge of smaller types."""
    before: Token | None = None
    for generation in EDGES:
        token = bench.armed(generation, f"owner of {generation}")
        bench.write(token, str(generation))
        if before is not None:
            what = f"a write of {before.generation} after {generation}"
            refused(StaleToken, what, bench.write, before, "late")
        before = token
    bench.truth_is(*map(str, EDGES))


@promise("D1 delayed-refused", "atomic")
def delayed_refused(bench: SinkBench) -> None:
    """A write that stands still while a newer owner arms and writes is refused when it goes on."""
    was_refused = bench.interrupted(bench.armed(7), "old", partial(take_over, bench, "new"))
    bench.truth_is(*before_the_rest(was_refused), "new")


@promise("D1 takeovers-race", "atomic", "concurrent", "history")
def takeovers_race(bench: SinkBench) -> None:
    """Of owners that arm and write at once, no effect comes after a newer owner's."""

    def tenure(generation: int) -> list[str]:
        done: list[str] = []
        with bench.elsewhere() as own:
            try:
                token = own.armed(generation)
                for count in range(3):
                    own.write(token, f"{generation}.{count}")
                    done.append(f"{generation}.{count}")
            except StaleToken:
                must(generation < 5, "the newest owner was refused")
        return done

    answers = race(*(partial(tenure, generation) for generation in range(1, 6)))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    found = bench.truth()
    must(found == sorted(found), f"in effect are, in this order, {found}")
    acknowledged = sorted(value for done in answers for value in done)
    must(sorted(found) == acknowledged, f"in effect are {found}, acknowledged were {acknowledged}")


@promise("D8 unarmed-as-declared")
def unarmed_as_declared(bench: SinkBench) -> None:
    """An unarmed write of a newer owner is NotArmed and changes nothing, or raises the mark, as declared."""
    old, new = bench.armed(7), bench.token(8)
    if bench.can.needs_arm:
        refused(NotArmed, "an unarmed write of 8", bench.write, new, "new")
        bench.write(old, "old")
        bench.truth_is("old")
    else:
        bench.write(new, "new")
        refused(StaleToken, "a write of 7 after one of 8", bench.write, old, "old")
        refused(StaleToken, "arming 7 after a write of 8", bench.arm, old)
        bench.truth_is("new")


@promise("D8 mark-survives", "durable")
def mark_survives(bench: SinkBench) -> None:
    """A new handle knows the mark, whoever raised it, and though that handle is gone."""
    with bench.elsewhere() as first:
        first.write(first.armed(8), "new")
    refused(StaleToken, "a write of 7 by another handle", bench.write, bench.token(7), "late")
    with bench.elsewhere() as third:
        refused(StaleToken, "arming 7 by a new handle", third.arm, third.token(7))
        third.write(third.token(8), "again")
    bench.truth_is("new", "again")


@promise("D9 arm-refuses-older")
def arm_refuses_older(bench: SinkBench) -> None:
    """Once a newer owner has armed, though it wrote nothing, an older one neither writes nor arms."""
    old = bench.armed(7)
    bench.armed(8)
    refused(StaleToken, "a write of 7 after 8 had armed", bench.write, old, "late")
    refused(StaleToken, "arming 7 after 8 had armed", bench.arm, old)
    bench.truth_is()


@promise("D9 arm-repeatable")
def arm_repeatable(bench: SinkBench) -> None:
    """To arm again changes nothing, before and after a write."""
    token = bench.armed(7)
    bench.arm(token)
    bench.write(token, "1")
    bench.arm(token)
    bench.write(token, "2")
    bench.truth_is("1", "2")


@promise("D9 arms-race", "concurrent")
def arms_race(bench: SinkBench) -> None:
    """Of owners that arm at once, the newest succeeds and stays, each twice over; no other can write then."""

    def arm(generation: int) -> None:
        with bench.elsewhere() as own:
            own.armed(generation)

    answers = race(*(partial(arm, generation) for generation in (1, 2, 3, 4, 4)))
    for answer in answers:
        must(answer is None or type(answer) is StaleToken, f"arming raised {answer!r}")
    must(answers[-2:] == [None, None], f"arming the newest raised {answers[-2:]}")
    for generation in (1, 2, 3):
        refused(StaleToken, f"a write of {generation}", bench.write, bench.token(generation), "late")
    bench.write(bench.token(4), "new")
    bench.truth_is("new")


@promise("D9 delayed-after-arm", "atomic")
def delayed_after_arm(bench: SinkBench) -> None:
    """A write that stands still while a newer owner arms is refused when it goes on."""
    was_refused = bench.interrupted(bench.armed(7), "old", partial(take_over, bench))
    bench.truth_is(*before_the_rest(was_refused))


@promise("L2 arm-not-kept-waiting", "atomic", "nonblocking")
def arm_not_kept_waiting(bench: SinkBench) -> None:
    """A newer owner arms and writes while an older one stands still inside a write."""
    bench.interrupted(bench.armed(7), "old", partial(take_over, bench, "new"))


@promise("L3 refusal-tells-bearer")
def refusal_tells_bearer(bench: SinkBench) -> None:
    """A refusal calls `bearer.lose` once, with the error that is raised; nothing else calls it."""
    for generation, refuse in ((7, bench.arm), (17, partial(bench.write, value="late"))):
        lease = fake_lease(bench.job_id, generation, f"a:{generation}")
        bench.arm(lease)
        bench.write(lease, str(generation))
        must(not lease.refusals, "a bearer was told of a refusal, and there was none")
        bench.armed(generation + 1)
        stale = refused(StaleToken, f"{generation} after {generation + 1}", refuse, lease)
        told = [reason is stale for reason in lease.refusals]
        must(told == [True], f"raised was {stale!r}, the bearer was told {lease.refusals}")


@promise("L3 lapsed-not-sent")
def lapsed_not_sent(bench: SinkBench) -> None:
    """A lease that is over raises LeaseLost out of the sink as out of `.token`, and nothing is sent."""
    clock = HandClock()
    lease = fake_lease(bench.job_id, 7, ttl=30.0, clock=clock)
    bench.arm(lease)
    clock.advance(31.0)
    refused(LeaseLost, "a write under a lease that is over", bench.write, lease, "late")
    refused(LeaseLost, "arming under a lease that is over", bench.arm, lease)
    bench.truth_is()


def take_over(bench: SinkBench, *values: str) -> None:
    """Be the newer owner, by a handle of one's own."""
    with bench.elsewhere() as other:
        token = other.armed(8)
        for value in values:
            other.write(token, value)


def before_the_rest(was_refused: bool) -> list[str]:
    """Return what an interrupted write may have left: if it was acknowledged, it came before the takeover."""
    return [] if was_refused else ["old"]


fencing: Final[tuple[Promise[SinkBench], ...]] = promises_in(globals())
