"""A clock that moves when it is told to."""

from __future__ import annotations

import threading


class HandClock:
    """Stands in for `sinkfence.terms.boot_time`, and its `advance` for `time.sleep`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds that it stands at."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Move it on."""
        with self._lock:
            self._now += seconds
