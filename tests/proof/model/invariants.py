"""The invariants that the model watches, by the names of the page docs/explanation/model.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from model.world import World


def s1(world: World) -> bool:
    """Generations strictly increase."""
    return world.failovers > 0 or all(a.generation < b.generation for a, b in pairwise(world.issued))


def s2(world: World) -> bool:
    """At most one live owner by the store's clock."""
    return not world.robbed


def s5(world: World) -> bool:
    """A generation has one acquirer."""
    return len({mark.generation for mark in world.issued}) == len(world.issued)


def s7(world: World) -> bool:
    """Generations do not go back across a failover of the store."""
    return world.failovers == 0 or all(a.generation < b.generation for a, b in pairwise(world.issued))


def d1(world: World) -> bool:
    """Applied generations never go back."""
    return all(a.generation <= b.generation for a, b in pairwise(world.effects))


def d2(world: World) -> bool:
    """Only issued tokens are applied."""
    return all((effect.generation, effect.by) in world.issued for effect in world.effects)


def d3(world: World) -> bool:
    """Every effect builds on the one before it."""
    return all(effect.base in (None, position) for position, effect in enumerate(world.effects))


def d4(world: World) -> bool:
    """At most one effect per idempotency key."""
    keys = [effect.key for effect in world.effects if effect.key]
    return len(keys) == len(set(keys))


def d8(world: World) -> bool:
    """The mark is at least the highest applied generation, in every process that keeps one."""
    highest = max((effect.generation for effect in world.effects), default=0)
    return all((mark.generation if mark else 0) >= highest for mark in world.marks)


def d9(world: World) -> bool:
    """After arming g has returned, nothing below g is applied."""
    return all(effect.generation >= effect.armed for effect in world.effects)


INVARIANTS: dict[str, Callable[[World], bool]] = {
    "S1": s1, "S2": s2, "S5": s5, "S7": s7, "D1": d1, "D2": d2, "D3": d3, "D4": d4, "D8": d8, "D9": d9,
}  # fmt: skip
MEANING = {name: (check.__doc__ or "").rstrip(".") for name, check in INVARIANTS.items()} | {
    "L1": "Whatever has happened, the job can still have its effects"
}


def broken(world: World) -> Iterator[str]:
    """The names of the invariants that do not hold here."""
    return (name for name, holds in INVARIANTS.items() if not holds(world))
