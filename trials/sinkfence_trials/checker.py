"""Whether a history kept the invariants: a program of its own, which shares no code with what it judges.

    python -m sinkfence_trials.checker FILE...

prints each violation by its name, and exits with 1 if there is one.

It goes through the events once for each family of invariants, with a dictionary per job: linear in their
number, but for sorting the store's answers by the store's clock.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sinkfence_trials.history import Event, read

CLOCK_GRAIN = 0.001
"""Seconds by which lease_until - now may differ from ttl: both are rounded on the way."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that one job's history breaks."""

    invariant: str
    job: str
    sentence: str
    event: Event


def check(events: Iterable[Event]) -> list[Violation]:
    """Every violation of S1 to S7, D1 to D9 and L1, job by job."""
    jobs: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        jobs[event.job].append(event)
    world = jobs.pop("", [])
    times = [event.t for event in world if event.f == "failover"]
    failovers = list(zip(times[::2], times[1::2], strict=True))
    healed = [event for event in world if event.f == "heal"]
    found: list[Violation] = []
    for job, own in jobs.items():
        sinks = {event.value.get("sink") for event in own if event.f in ("write", "effect")}
        families = [store(own, failovers), acknowledged(own)]
        for sink in sinks:
            # An acquisition is at none of the sinks, and concerns them all.
            there = [event for event in own if event.f == "acquire" or event.value.get("sink") == sink]
            families += [destination(there), progress(there, healed)]
        found += [
            Violation(name, job, sentence, event) for each in families for name, sentence, event in each
        ]
    return found


Span = tuple[float, float]
Found = Iterator[tuple[str, str, Event]]


def store(events: list[Event], failovers: list[Span]) -> Found:
    """S1 to S7: what the lease store has acknowledged."""
    invoked: dict[tuple[str, str], float] = {}
    answers: list[Event] = []
    epochs: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.f not in ("acquire", "renew", "complete", "release"):
            continue
        if event.type == "invoke":
            invoked[event.p, event.f] = event.t
        elif event.type == "ok" and "now" in event.value:
            answers.append(event)
            asked = invoked.get((event.p, event.f), event.t)
            # What was under way during a failover was answered by the one or the other: nobody can say.
            if all(event.t <= begin or asked >= end for begin, end in failovers):
                epochs[sum(asked >= end for _, end in failovers)].append(event)
    yield from one_acquirer(answers)
    before = 0
    for epoch in sorted(epochs):
        # The clients' clocks and the order of the answers say nothing: the store's own instants do.
        own = sorted(epochs[epoch], key=lambda event: event.value["now"])
        yield from counting(own, before)
        yield from holding(own)
        before = max(before, *(event.generation or 0 for event in own))


def one_acquirer(answers: list[Event]) -> Found:
    """S5."""
    owners: dict[int | None, str] = {}
    for event in answers:
        if event.f == "acquire":
            owner = owners.setdefault(event.generation, event.value["owner"])
            if owner != event.value["owner"]:
                yield (
                    "S5",
                    f"generation {event.generation} was given to {owner} and to {event.value['owner']}",
                    event,
                )


def counting(answers: list[Event], before: int) -> Found:
    """S1 within one life of the store, S7 against the lives before. The same number twice is S5's."""
    highest = 0
    for event in answers:
        if event.f == "acquire" and event.generation is not None:
            if event.generation < highest:
                yield "S1", f"generation {event.generation} was issued after {highest}", event
            if event.generation < before:
                yield (
                    "S7",
                    f"generation {event.generation} was issued after a failover, and {before} before",
                    event,
                )
            highest = max(highest, event.generation)


def holding(answers: list[Event]) -> Found:
    """S2, S3, S4 and S6: who holds the job, and until when, by the store's clock."""
    holder: tuple[int | None, str] | None = None
    until, open_ = float("-inf"), True
    for event in answers:
        this, now = (event.generation, event.value["owner"]), event.value["now"]
        current = holder is None or holder == this  # a history may begin in the middle
        if event.f in ("acquire", "renew"):
            granted = event.value["until"] - now
            if abs(granted - event.value["ttl"]) > event.value.get("grain", CLOCK_GRAIN):
                yield "S3", f"{event.value['ttl']} s were asked for, and {granted} s granted", event
        if event.f == "acquire":
            if holder not in (None, this) and now < until:
                yield "S2", f"{this} was let in at {now}, and {holder} held the job until {until}", event
            holder, until, open_ = this, event.value["until"], True
        elif event.f == "renew":
            if not (current and open_) or event.value.get("asked", event.generation) != event.generation:
                yield "S4", f"{this} renewed, and {holder} held the job", event
            elif current:
                until = event.value["until"]
        elif event.f == "complete":
            if not current:
                yield "S6", f"{this} completed, and {holder} held the job", event
            until, open_ = float("-inf"), False
        elif current:  # release
            until, open_ = float("-inf"), False


def acknowledged(events: list[Event]) -> Found:
    """S4 and S6 as the clients see them: asked after a later owner had been let in, and answered "yes"."""
    latest = 0
    asked: dict[tuple[str, str], int] = {}
    for event in events:
        if "now" in event.value:  # the store's own
            continue
        if event.f == "acquire" and event.type == "ok":
            latest = max(latest, event.generation or 0)
        elif event.f in ("renew", "complete"):
            if event.type == "invoke":
                asked[event.p, event.f] = latest
            elif event.type == "ok" and (event.generation or 0) < asked.get((event.p, event.f), 0):
                later = asked[event.p, event.f]
                name = "S4" if event.f == "renew" else "S6"
                yield name, f"{event.f} of {event.generation} after {later} had been let in", event


def progress(events: list[Event], healed: list[Event]) -> Found:
    """L1: once nothing is done to anybody any more, the job has effects again."""
    for heal in healed:
        if not any(event.f == "effect" and event.t >= heal.t for event in events):
            yield "L1", "nothing was applied after the faults had healed", heal


def destination(events: list[Event]) -> Found:
    """D1 to D9: what the truth shows, against what was asked and answered."""
    yield from order(events)
    yield from origin(events)
    yield from answers_and_truth(events)


def order(events: list[Event]) -> Found:
    """D1, D3, D8 and D9: what came after what."""
    highest, armed = 0, 0
    last: str | None = None
    for event in events:
        generation = event.generation or 0
        if (event.f, event.type) == ("arm", "ok"):
            armed = max(armed, generation)
        elif event.f == "effect":
            this, base = event.value["id"], event.value.get("base", last)
            if generation < highest:
                yield "D1", f"generation {generation} was applied after {highest}", event
            if base != last:
                yield "D3", f"{this} builds on {base}, and {last} was there", event
            if generation < armed:
                yield "D9", f"generation {generation} was applied after {armed} had been armed", event
            last, highest = this, max(highest, generation)
        elif event.f == "mark" and generation < highest:
            yield "D8", f"the mark is {generation}, and {highest} has been applied", event


def origin(events: list[Event]) -> Found:
    """D2, D4 and D7: who asked for it, under which token, and how often."""
    asked = {event.value["id"] for event in events if (event.f, event.type) == ("write", "invoke")}
    issued = {
        (event.generation, event.value["owner"])
        for event in events
        if (event.f, event.type) == ("acquire", "ok")
    }
    applied: set[str] = set()
    keys: dict[str, str] = {}
    for event in events:
        if event.f != "effect":
            continue
        this, owner = event.value["id"], event.value["owner"]
        if (event.generation, owner) not in issued:
            yield "D2", f"generation {event.generation} of {owner} was applied and never issued", event
        if event.key is not None and (first := keys.setdefault(event.key, this)) != this:
            yield "D4", f"step {event.key} had its effect by {first} and again by {this}", event
        if this in applied:
            yield "D4", f"{this} was applied twice", event
        if this not in asked:
            yield "D7", f"nobody asked for {this}", event
        applied.add(this)


def answers_and_truth(events: list[Event]) -> Found:
    """D5 and D6: what was said to have happened did, and what was refused did not."""
    writes = [event for event in events if event.f == "write"]
    asked = {event.value["id"]: event for event in writes if event.type == "invoke"}
    answered = {event.value["id"]: event.type for event in writes if event.type != "invoke"}
    unknown = {event.key for event in writes if event.type == "info"}
    effects = [event for event in events if event.f == "effect"]
    applied = {event.value["id"] for event in effects}
    keys = {event.key for event in effects if event.key is not None}
    for this, outcome in answered.items():
        event = asked[this]
        # A repetition is acknowledged for what another attempt under its key has done.
        if outcome == "ok" and this not in applied and event.key not in keys:
            yield "D5", f"{this} was acknowledged, and is not in the truth", event
        # An attempt that repeats one of unknown outcome may be refused after that one was applied.
        if outcome == "fail" and this in applied and event.key not in unknown:
            yield "D6", f"{this} was refused, and is in the truth", event
    for event in events:
        if event.f == "trace" and answered.get(event.value["id"]) == "fail":
            yield "D6", f"{event.value['id']} was refused, and left {event.value['where']}", event


def main(paths: list[str]) -> int:
    """Check the files together and print what is wrong."""
    violations = check(read(map(Path, paths)))
    for violation in violations:
        print(f"{violation.invariant} {violation.job}: {violation.sentence}\n  {violation.event.line()}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
