"""What a lease store has acknowledged, by its own clock and as its clients saw it: S1 to S7."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, Self

from sinkfence_trials.checker.words import holder, named
from sinkfence_trials.history import Event

CLOCK_GRAIN = 0.001
"""Seconds by which lease_until - now may differ from ttl: both are rounded on the way."""

Found = Iterator[tuple[str, str, Event]]
"""What is broken: its name, a sentence, and the event by which."""


class Failover(NamedTuple):
    """From when until when the store went over to a standby or a backup."""

    begin: float
    end: float
    lossy: bool
    """Whether that lacked something that had been acknowledged: then owners before it may be let on."""
    stopped: float | None = None
    """When it began and ended by the store's clock, where that is known: an observer's `t` may be early."""
    resumed: float | None = None

    @classmethod
    def told(cls, begin: Event, end: Event) -> Self:
        """As two events tell of it."""
        lossy = bool(end.value.get("lossy"))
        return cls(begin.t, end.t, lossy, begin.value.get("now"), end.value.get("now"))

    def is_within(self, begin: float, end: float) -> bool:
        """Whether some of it lay between two instants."""
        return begin <= self.end and self.begin <= end

    def is_after(self, answer: Event) -> bool:
        """Whether it is certain that the store gave an answer before it."""
        return answer.t <= self.begin if self.stopped is None else answer.value["now"] <= self.stopped

    def is_before(self, answer: Event, asked: float) -> bool:
        """Whether it is certain that the store gave an answer after it."""
        return asked >= self.end if self.resumed is None else answer.value["now"] >= self.resumed


def store(events: list[Event], failovers: list[Failover]) -> Found:
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
            if all(each.is_after(event) or each.is_before(event, asked) for each in failovers):
                epochs[sum(each.is_before(event, asked) for each in failovers)].append(event)
    yield from one_acquirer(answers)
    before = 0
    for epoch in sorted(epochs):
        # The clients' clocks and the order of the answers say nothing: the store's own instants do.
        own = sorted(epochs[epoch], key=lambda event: event.value["now"])
        yield from counting(own, before)
        yield from terms(own)
        yield from holding(own)
        before = max(before, *(event.generation or 0 for event in own))


def one_acquirer(answers: list[Event]) -> Found:
    """S5."""
    owners: dict[int | None, str] = {}
    for event in answers:
        if event.f == "acquire":
            owner = owners.setdefault(event.generation, event.value["owner"])
            if owner != event.value["owner"]:
                both = f"to owner {owner} and to owner {event.value['owner']}"
                yield "S5", f"generation {event.generation} was issued {both}", event


def counting(answers: list[Event], before: int) -> Found:
    """S1 within one life of the store, S7 against the lives before. The same number twice is S5's."""
    highest = 0
    for event in answers:
        if event.f == "acquire" and event.generation is not None:
            if event.generation < highest:
                yield "S1", f"{holder(event)} was issued after generation {highest}", event
            if event.generation < before:
                both = f"{holder(event)} was issued after a failover, and generation {before} before it"
                yield "S7", both, event
            highest = max(highest, event.generation)


def terms(answers: list[Event]) -> Found:
    """S3: for how long a lease was granted, by the store's clock."""
    for event in answers:
        if event.f in ("acquire", "renew"):
            granted, ttl = event.value["until"] - event.value["now"], event.value["ttl"]
            # Whoever reads the clock after the store did sees less of the lease, and never more.
            if not ttl - event.value.get("grain", CLOCK_GRAIN) <= granted <= ttl + CLOCK_GRAIN:
                both = f"asked for a lease of {ttl:.3f} s and was granted {granted:.3f} s"
                yield "S3", f"{holder(event)} {both}", event


def holding(answers: list[Event]) -> Found:
    """S2, S4 and S6: who holds the job, and until when, by the store's clock."""
    before: tuple[int | None, str] | None = None
    until, open_ = float("-inf"), True
    for event in answers:
        this, now = (event.generation, event.value["owner"]), event.value["now"]
        current = before is None or before == this  # a history may begin in the middle
        if event.f == "acquire":
            if before is not None and before != this and now < until:
                early = f"{until - now:.3f} s before the lease of {named(*before)} ran out"
                yield "S2", f"{holder(event)} was let in {early}", event
            before, until, open_ = this, event.value["until"], True
        elif event.f == "renew":
            asked = event.value.get("asked", event.generation)
            if before is not None and not current:
                yield "S4", f"{holder(event)} renewed its lease, and {named(*before)} held the job", event
            elif not open_:
                yield "S4", f"{holder(event)} renewed its lease after it had ended", event
            elif asked != event.generation:
                yield "S4", f"{holder(event)} renewed its lease by showing generation {asked}", event
            else:
                until = event.value["until"]
        elif event.f == "complete":
            if before is not None and not current:
                yield "S6", f"{holder(event)} completed the job, and {named(*before)} held it", event
            until, open_ = float("-inf"), False
        elif current:  # release
            until, open_ = float("-inf"), False


class _Known(NamedTuple):
    """The newest owner of whom some client knew when something was asked."""

    generation: int
    since: float


def acknowledged(events: list[Event], failovers: list[Failover]) -> Found:
    """S1, S4, S6 and S7 as the clients see them: asked after a later owner had been let in, and granted."""
    newest = _Known(0, 0.0)
    asked: dict[tuple[str, str], _Known] = {}
    for event in events:
        if "now" in event.value or event.f not in ("acquire", "renew", "complete"):  # else the store's own
            continue
        generation = event.generation or 0
        if event.type == "invoke":
            asked[event.p, event.f] = newest
        elif event.type == "ok":
            known = asked.get((event.p, event.f), _Known(0, 0.0))
            between = [each for each in failovers if each.is_within(known.since, event.t)]
            if generation < known.generation:
                late = f"a request sent after generation {known.generation} had been"
                if event.f == "acquire":
                    yield "S7" if between else "S1", f"{holder(event)} was issued to {late}", event
                elif not any(each.lossy for each in between):
                    name, did = ("S4", "renewed") if event.f == "renew" else ("S6", "completed")
                    yield name, f"{holder(event)} {did} by {late} issued", event
            if event.f == "acquire" and generation > newest.generation:
                newest = _Known(generation, event.t)
