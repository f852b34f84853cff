"""Who and what a sentence is about, in words for people: the event itself is beside it."""

from __future__ import annotations

from sinkfence_trials.history import Event


def holder(event: Event) -> str:
    """Return the generation and its owner."""
    return named(event.generation, event.value["owner"])


def named(generation: int | None, owner: str) -> str:
    """Return a generation and its owner."""
    return f"generation {generation} (owner {owner})"


def whose(event: Event) -> str:
    """Return which attempt it was, and of whom."""
    return f"{event.value['id']} of {holder(event)}"


def step(event: Event) -> str:
    """Return of which step, to follow the attempt; nothing where it has none."""
    return "" if event.key is None else f", step {event.key},"


def at(sink: str | None) -> str:
    """Return at which destination, where a job has several."""
    return "" if sink is None else f" at {sink}"
