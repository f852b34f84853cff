"""What a destination has applied, against what was asked and answered: D1 to D9, and L1."""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.history import Event

Found = Iterator[tuple[str, str, Event]]
"""What is broken: its name, a sentence, and the event by which."""


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
