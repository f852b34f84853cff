"""What a picture has room for: what would lie on one another is drawn as one, with a count."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def thinned(things: Iterable[T], place: Callable[[T, float], Hashable], most: float) -> list[tuple[T, int]]:
    """Keep the first thing of each place, and how many it stands for.

    `place` says where a thing is, by a grain in the picture's units: 1, and doubled until no more than `most`
    are left.
    """
    kept, grain = [(thing, 1) for thing in things], 1.0
    while True:
        places: dict[Hashable, tuple[T, int]] = {}
        for thing, count in kept:
            at = place(thing, grain)
            first, before = places.get(at, (thing, 0))
            places[at] = first, before + count
        kept = list(places.values())
        if len(kept) <= most or grain > most:
            return kept
        grain *= 2
