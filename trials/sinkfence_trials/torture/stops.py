"""One message on its way through the fault proxy, and what is done to it."""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

from sinkfence_trials.torture.links import Direction


class Place(NamedTuple):
    """One message: the n-th one way over the n-th connection, from 1."""

    connection: int
    direction: Direction
    message: int


class Stop:
    """One place at which one message is held, once; or the next message of a direction, wherever it is."""

    def __init__(self, place: Place, beginning: bytes = b"") -> None:
        self.place = place
        self._beginning = beginning
        self.frozen: threading.Event = threading.Event()
        """Set when the message has been written by its sender and is held here."""
        self.over: threading.Event = threading.Event()
        """Set when it has been decided what becomes of it."""
        self.verdict: Literal["release", "drop", "cut", "tear"] = "release"

    def is_at(self, here: Place, data: bytes) -> bool:
        """Whether this is the message that is waited for."""
        place = self.place if self.place.message else here._replace(direction=self.place.direction)
        return not self.frozen.is_set() and place == here and data.startswith(self._beginning)

    def release(self) -> None:
        """Deliver the message, even if its sender has gone."""
        self.over.set()

    def drop(self) -> None:
        """Lose the message and keep the connection: the sender waits for ever."""
        self.verdict = "drop"
        self.over.set()

    def cut(self) -> None:
        """Lose the message and reset the connection on both sides."""
        self.verdict = "cut"
        self.over.set()

    def tear(self) -> None:
        """Deliver the message's first burst, at most 64 KiB, lose the rest, and reset as `cut` does."""
        self.verdict = "tear"
        self.over.set()

    def wait(self, timeout: float = 30.0) -> None:
        """Return when the message is held; TimeoutError if it does not come."""
        if not self.frozen.wait(timeout):
            raise TimeoutError(f"{self.place} did not come")
