"""How long a grant may be trusted on this side, whatever the wall clocks say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds from an arbitrary instant, never going back and counting through suspend."""


def boot_time() -> float:
    """Return seconds since boot, suspend included (CLOCK_BOOTTIME, clock_gettime(2)); the one local clock.

    CLOCK_MONOTONIC stands still while a machine sleeps, and a lease does not; it is the fallback where
    the system has nothing better.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Term:
    """How long one grant holds here: a courtesy that stops a late worker early, not the safety.

    It counts from *before* the request was sent, so that it ends before the lease does by the store's
    clock, however long request and answer were under way.
    """

    asked: float
    """When the request was about to be sent, by the clock that `remaining` is given."""
    ttl: float
    """How long the store grants, in seconds."""

    @property
    def margin(self) -> float:
        """Seconds given up for clocks that run at different rates: 2 % of the ttl, at least 10 ms."""
        return max(0.02 * self.ttl, 0.01)

    def remaining(self, now: float) -> float:
        """Return the seconds that are left at `now`; negative once the term is over."""
        return self.asked + self.ttl - self.margin - now
