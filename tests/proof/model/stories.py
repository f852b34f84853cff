"""What the explorer found, for people: the bounds, a table of verdicts, and each fault as a short story."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from model.explore import Exploration
from model.invariants import MEANING
from model.variants import Variant
from model.world import World


def verdict(variant: Variant) -> str:
    """How a variant is judged, in a word or in the names of what breaks."""
    return " ".join(name for name in MEANING if name in variant.breaks) or "holds"


def bounds(variant: Variant, found: Exploration[World]) -> str:
    """How far the exploration went: what it says, it says of this and no more."""
    program = ", ".join(variant.program)
    times = {1: "once", 2: "up to twice"}[variant.copies]
    return (
        f"{variant.workers} workers, one tenure each ({program}), each request delivered {times}: "
        f"{found.states} states, {found.transitions} transitions, depth {found.depth}"
    )


def story(variant: Variant, found: Exploration[World], name: str) -> str:
    """The shortest way to break one invariant, step by step."""
    steps = "\n".join(f"{number:2}. {sentence}" for number, sentence in enumerate(found.broken[name], 1))
    return f"{variant.name}: {name} broken\n{indent(steps, '  ')}\n  => not: {MEANING[name]}"


def report(variant: Variant, found: Exploration[World]) -> Iterator[str]:
    """Everything about one variant, in lines."""
    yield f"{variant.name}: {verdict(variant)}"
    yield f"  {bounds(variant, found)}"
    for name in MEANING:
        if name in found.broken:
            yield indent(story(variant, found, name), "  ")
