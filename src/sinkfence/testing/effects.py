"""What every sink promises of effects: each once, all that was acknowledged, and nothing else."""

from __future__ import annotations

from functools import partial
from typing import Final

from sinkfence.errors import GenerationConflict, IdempotencyMismatch, NotArmed, StaleToken
from sinkfence.testing.promises import NotRun, Promise, must, promise, promises_in, race, refused
from sinkfence.testing.sink_harness import SinkBench

LONG: Final = "\U0001f512" * 43
ODD: Final = (
    "a",
    "A",
    "a%",
    "a_",
    "a ",
    " a",
    "a'; --",
    'a"\\',
    "a/b?c#d",
    "é",
    "e\u0301",
    LONG + "end",
    LONG + "enD",
)
"""Suffixes that differ bytewise and are easily taken for one another, misquoted, or cut off."""


@promise("D4 duplicate-once", "keys")
def duplicate_once(bench: SinkBench) -> None:
    """A step that an owner repeats takes effect once, and the repetition succeeds."""
    token = bench.armed(7)
    bench.write(token, "step 1", "1")
    bench.write(token, "step 1", "1")
    bench.write(token, "step 2", "2")
    bench.write(token, "step 1", "1")
    bench.truth_is("step 1", "step 2")


@promise("D4 duplicate-across-owners", "keys")
def duplicate_across_owners(bench: SinkBench) -> None:
    """A step that the old owner finished is not done again by the new one."""
    bench.write(bench.armed(7), "step", "1")
    bench.write(bench.armed(8), "step", "1")
    bench.truth_is("step")


@promise("D4 other-content-refused", "keys")
def other_content_refused(bench: SinkBench) -> None:
    """A step that is repeated with other content raises IdempotencyMismatch, and changes nothing."""
    token = bench.armed(7)
    bench.write(token, "this", "1")
    refused(IdempotencyMismatch, "other content under the same step", bench.write, token, "that", "1")
    bench.truth_is("this")


@promise("D1 fence-before-key", "keys")
def fence_before_key(bench: SinkBench) -> None:
    """A stale owner that repeats what it did is refused all the same, and is not told "done"."""
    old = bench.armed(7)
    bench.write(old, "step", "1")
    bench.armed(8)
    refused(StaleToken, "a repetition by 7 after 8 had armed", bench.write, old, "step", "1")
    bench.truth_is("step")


@promise("D6 refused-leaves-no-key", "keys")
def refused_leaves_no_key(bench: SinkBench) -> None:
    """A step that was refused is not taken for done when the new owner does it."""
    old, new = bench.armed(7), bench.armed(8)
    refused(StaleToken, "a write of 7 after 8 had armed", bench.write, old, "step", "1")
    bench.write(new, "step", "1")
    bench.truth_is("step")


@promise("D8 duplicate-raises-mark", "keys")
def duplicate_raises_mark(bench: SinkBench) -> None:
    """A repetition by a newer owner raises the mark as a write does, though it changes nothing."""
    if bench.can.needs_arm:
        raise NotRun("the mark rises by arming alone")
    old = bench.armed(7)
    bench.write(old, "step", "1")
    bench.write(bench.token(8), "step", "1")
    refused(StaleToken, "a write of 7 after a repetition by 8", bench.write, old, "late", "2")
    bench.truth_is("step")


@promise("D5 acknowledged-applied", "concurrent")
def acknowledged_applied(bench: SinkBench) -> None:
    """Of one owner's writes at the same time, each that was acknowledged took effect, once."""
    token = bench.armed(7)

    def write(value: str) -> str:
        with bench.elsewhere() as own:
            own.write(token, value)
        return value

    for answer in (answers := race(*(partial(write, str(count)) for count in range(4)))):
        if isinstance(answer, Exception):
            raise answer
    found = bench.truth()
    kept = sorted(found) == answers if bench.can.history else found[-1:] in ([a] for a in answers)
    must(kept, f"in effect are {found}, acknowledged were {answers}")


@promise("D6 refused-leaves-nothing")
def refused_leaves_nothing(bench: SinkBench) -> None:
    """A refused write leaves no trace, and the mark neither rises nor changes its owner by it."""
    owner = bench.armed(8)
    bench.write(owner, "kept")
    refused(StaleToken, "a write of 7 under 8", bench.write, bench.token(7), "stale")
    refused(GenerationConflict, "another owner's 8", bench.write, bench.token(8, "b"), "twice")
    if bench.can.needs_arm:
        refused(NotArmed, "an unarmed write of 9", bench.write, bench.token(9), "unarmed")
    bench.truth_is("kept")
    bench.write(owner, "again")
    bench.truth_is("kept", "again")


@promise("D7 odd-job-ids")
def odd_job_ids(bench: SinkBench) -> None:
    """Every job_id of 1 to 200 UTF-8 bytes without control characters is a job of its own, bytewise."""
    marks = {bench.job_id + suffix: 10 + number for number, suffix in enumerate(ODD)}
    for job_id, generation in marks.items():
        with bench.elsewhere(job_id) as job:
            job.write(job.armed(generation), job_id)
    for job_id, generation in marks.items():
        with bench.elsewhere(job_id) as job:
            job.write(job.token(generation), "again")
            what = f"a write of {generation - 1} of {job_id!r}"
            refused(StaleToken, what, job.write, job.token(generation - 1), "late")
            job.truth_is(job_id, "again")


effects: Final[tuple[Promise[SinkBench], ...]] = promises_in(globals())
