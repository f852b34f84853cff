"""Where the counting is kept, and how it may go back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from model.world import Move, World


class Store(NamedTuple):
    """How a lease store counts, and what may befall it."""

    count: Callable[[World], int]
    moves: Callable[[World], Iterator[Move]]


def next_number(world: World) -> int:
    """The plain counter."""
    return world.record.generation + 1


def not_below_the_clock(world: World) -> int:
    """The clock floor: the plain counter, but never below the store's clock."""
    return max(world.record.generation + 1, world.clock)


def nothing(world: World) -> Iterator[Move]:
    """A store that keeps what it has acknowledged."""
    yield from ()


def lossy(world: World) -> Iterator[Move]:
    """An asynchronous standby: promoted once, it knows what had reached it. That takes a tick at least."""
    if world.standby != world.record:
        yield f"the standby has {world.record.generation}", world._replace(standby=world.record)
    if not world.failovers:
        yield promotion(world, clock=world.clock + 1)


def lossy_and_late(world: World) -> Iterator[Move]:
    """The same, and the standby's clock is behind by more than the promotion took."""
    if not world.failovers:
        yield promotion(world, clock=world.clock - 1)


def promotion(world: World, *, clock: int) -> Move:
    """The primary is gone; the record is what the standby has of it, and its lease is forgotten."""
    event = "the primary dies, and the standby is promoted"
    if world.standby == world.record:
        return f"{event}: nothing is lost", world._replace(failovers=1, clock=clock)
    kept, lost = world.standby.generation, world.record.generation
    after = world._replace(record=world.standby, holder="", failovers=1, clock=clock)
    return f"{event}: it knows of {kept}, {lost} is lost", after


SAFE = Store(next_number, nothing)
LOSSY = Store(next_number, lossy)
FLOORED = Store(not_below_the_clock, lossy)
FLOORED_LATE = Store(not_below_the_clock, lossy_and_late)
