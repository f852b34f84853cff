"""What a destination has applied, against what was asked and answered: D1 to D9, and L1."""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.checker.words import at, holder, step, whose
from sinkfence_trials.history import Event

Found = Iterator[tuple[str, str, Event]]
"""What is broken: its name, a sentence, and the event by which."""


def progress(events: list[Event], healed: list[Event], sink: str | None) -> Found:
    """L1: once nothing is done to anybody any more, the job has effects again."""
    for heal in healed:
        if not any(event.f == "effect" and event.t >= heal.t for event in events):
            yield "L1", f"nothing took effect{at(sink)} after the faults had healed", heal


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
                yield "D1", f"{holder(event)} took effect after generation {highest} had", event
            if base != last:
                before = f"the effect before it was {last}" if last else "there was no effect before it"
                yield "D3", f"{whose(event)} builds on {base or 'nothing'}, and {before}", event
            if generation < armed:
                yield "D9", f"{holder(event)} took effect after generation {armed} had been armed", event
            last, highest = this, max(highest, generation)
        elif event.f == "mark" and generation < highest:
            yield (
                "D8",
                f"the mark is at generation {generation} after generation {highest} took effect",
                event,
            )


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
            yield "D2", f"{holder(event)} took effect and was never issued", event
        if event.key is not None and (first := keys.setdefault(event.key, this)) != this:
            yield "D4", f"step {event.key} took effect by {first} and again by {whose(event)}", event
        if this in applied:
            yield "D4", f"{whose(event)} took effect twice", event
        if this not in asked:
            yield "D7", f"{whose(event)} took effect and nobody had asked for it", event
        applied.add(this)


def answers_and_truth(events: list[Event]) -> Found:
    """D5 and D6: what was said to have happened did, and what was refused did not."""
    writes = [event for event in events if event.f == "write"]
    asked = {event.value["id"]: event for event in writes if event.type == "invoke"}
    answered = {event.value["id"]: event.type for event in writes if event.type != "invoke"}
    unknown = {event.value["id"] for event in writes if event.type == "info"}
    effects = [event for event in events if event.f == "effect"]
    applied = {event.value["id"] for event in effects}
    keys = {event.key for event in effects if event.key is not None}
    for this, outcome in answered.items():
        event = asked[this]
        # A repetition is acknowledged for what another attempt under its key has done.
        if outcome == "ok" and this not in applied and event.key not in keys:
            yield "D5", f"{whose(event)}{step(event)} was acknowledged and never took effect", event
        # Sent again after an unknown outcome it may be refused, and have been applied the first time.
        if outcome == "fail" and this in applied and this not in unknown:
            yield "D6", f"{whose(event)}{step(event)} was refused and took effect", event
    for event in events:
        if event.f == "trace" and answered.get(this := event.value["id"]) == "fail":
            yield "D6", f"{whose(asked[this])} was refused and left {event.value['where']}", event
