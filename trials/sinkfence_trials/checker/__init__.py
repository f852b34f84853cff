"""Whether a history kept the invariants: a program of its own, which shares no code with what it judges.

    python -m sinkfence_trials.checker FILE...

prints each violation by its name, and exits with 1 if there is one.

It goes through the events once for each family of invariants, with a dictionary per job: linear in their
number, but for sorting the store's answers by the store's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sinkfence_trials.checker.destination import destination, progress
from sinkfence_trials.checker.leases import Failover, acknowledged, store
from sinkfence_trials.history import Event

__all__ = ["Violation", "check"]


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
    told = [event for event in world if event.f == "failover"]
    failovers = [Failover.told(*both) for both in zip(told[::2], told[1::2], strict=False)]
    healed = [event for event in world if event.f == "heal"]
    found: list[Violation] = []
    # Those of all jobs: one that never came to write has had no effect anywhere.
    sinks = dict.fromkeys(
        event.value.get("sink") for own in jobs.values() for event in own if event.f in ("write", "effect")
    )
    for job, own in jobs.items():
        families = [store(own, failovers), acknowledged(own, failovers)]
        for sink in sinks:
            # An acquisition is at none of the sinks, and concerns them all.
            there = [event for event in own if event.f == "acquire" or event.value.get("sink") == sink]
            families += [destination(there), progress(there, healed, sink)]
        found += [
            Violation(name, job, sentence, event) for each in families for name, sentence, event in each
        ]
    return found
