"""Whose turn it is to ask the store for a job, of those in this process that wait for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

TURN: Final = 3.0
"""Seconds for which one keeps the others from asking: more than a store waits for a locked record."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One caller's, from when on."""

    job_id: str
    since: float


class Turns:
    """One asks, and the others wait for it.

    An open transaction may keep a record locked, and each who asks for it waiting: were all to ask who want
    the job, they would have all connections, and who leaves another job would get none. But nobody is kept
    waiting for long by one whose thread hangs, whose loop has gone, or who was interrupted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: dict[str, Turn] = {}

    def take(self, job_id: str, now: float, *, last: bool) -> Turn | None:
        """Return the caller's turn, None if it is another's. The `last` time it comes in any case."""
        with self._lock:
            other = self._asking.get(job_id)
            if other is not None and now - other.since < TURN and not last:
                return None
            self._asking[job_id] = turn = Turn(job_id, now)
            return turn

    def end(self, turn: Turn) -> None:
        """End it, unless somebody else has taken it over."""
        with self._lock:
            if self._asking.get(turn.job_id) is turn:
                del self._asking[turn.job_id]
