"""The lease store's clock, as instants of the clock that a history is written by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from statistics import median

from sinkfence_trials.history import Event

Answer = tuple[float, float, float]
"""When it was asked and when it was answered, by the history's clock, and what the store's clock said."""


class StoreClock:
    """Translates the store's instants. After a failover another store counts, by another clock."""

    def __init__(self, answers: Iterable[Answer], failovers: Sequence[float]) -> None:
        self._failovers = failovers
        lives: dict[int, list[Answer]] = {}
        for answer in answers:
            lives.setdefault(self._life(answer[1]), []).append(answer)
        self._offsets = {life: _offset(heard) for life, heard in lives.items()}

    def here(self, instant: float, answered: float) -> float:
        """Return when it was that instant of the store's, given when the store said so."""
        return instant + self._offsets.get(self._life(answered), 0.0)

    def _life(self, answered: float) -> int:
        return bisect_right(self._failovers, answered)


def answers(events: Iterable[Event]) -> list[Answer]:
    """Find what the store has said of its clock, and within which instants of ours."""
    asked: dict[tuple[str, str], float] = {}
    found: list[Answer] = []
    for event in events:
        if event.type == "invoke":
            asked[event.p, event.f] = event.t
        elif "now" in event.value:
            found.append((asked.get((event.p, event.f), event.t), event.t, event.value["now"]))
    return found


def _offset(heard: list[Answer]) -> float:
    # The store looked at its clock after it was asked and before it was heard: each answer bounds the offset
    # from both sides. Where the bounds contradict each other its clock was set, and the middle has to do.
    low = max(asked - now for asked, _, now in heard)
    high = min(got - now for _, got, now in heard)
    return (low + high) / 2 if low <= high else median(got - now for _, got, now in heard)
