"""Breadth first through every state that can be reached: what breaks, and by which shortest way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass
class Exploration(Generic[State]):
    """All that was found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    broken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of an invariant -> the sentences of a shortest way to break it."""
    happened: set[str] = field(default_factory=set)
    """Every sentence that occurs anywhere: what was not in here was not tried."""


def explore(
    start: State,
    moves: Callable[[State], Iterable[tuple[str, State]]],
    broken: Callable[[State], Iterable[str]],
    reached: Callable[[State], bool],
    *,
    limit: int = 100_000,
) -> Exploration[State]:
    """Visit every state once. More than `limit` of them is a MemoryError: a bound that is hit proves nothing.

    `L1` is broken in a state from which no way leads to one that is `reached`, whatever happens.
    """
    found: Exploration[State] = Exploration()
    came: dict[State, tuple[State, str] | None] = {start: None}
    before: dict[State, list[State]] = {start: []}
    depth = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for name in broken(state):
            if name not in found.broken:
                found.broken[name] = tuple(way(came, state))
        for sentence, after in moves(state):
            found.transitions += 1
            found.happened.add(sentence)
            if after not in came:
                if len(came) >= limit:
                    raise MemoryError(f"more than {limit} states")
                came[after] = (state, sentence)
                before[after] = []
                depth[after] = depth[state] + 1
                queue.append(after)
            before[after].append(state)
    found.states, found.depth = len(came), max(depth.values())
    hopeful = can_reach(before, [state for state in came if reached(state)])
    for state in came:  # in the order of their depth: the first is a nearest one
        if state not in hopeful:
            found.broken["L1"] = tuple(way(came, state))
            break
    return found


def way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """The sentences that lead from the start to a state."""
    sentences: list[str] = []
    while (step := came[state]) is not None:
        state, sentence = step
        sentences.append(sentence)
    return sentences[::-1]


def can_reach(before: dict[State, list[State]], goals: list[State]) -> set[State]:
    """The states from which some way leads to a goal."""
    hopeful, queue = set(goals), deque(goals)
    while queue:
        for earlier in before[queue.popleft()]:
            if earlier not in hopeful:
                hopeful.add(earlier)
                queue.append(earlier)
    return hopeful
