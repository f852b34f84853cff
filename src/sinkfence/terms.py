"""How long a grant may be trusted on this side, whatever the wall clocks say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

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


def check_seconds(name: str, value: timedelta | float, least: float, most: float) -> float:
    """Return a length of time in seconds, or raise TypeError or ValueError saying what is wrong with it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    # A bool is an int, and ttl=True a slip rather than one second.
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a timedelta or seconds, not {type(value).__name__}")
    if not least <= value <= most:  # a NaN compares false
        raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, not {value!r}")
    return float(value)


def check_ttl(ttl: timedelta | float) -> float:
    """Return a lease's length in seconds: a timedelta or seconds, from 0.05 s to 30 days.

    Raises:
        TypeError, ValueError: anything else.
    """
    return check_seconds("ttl", ttl, 0.05, 30 * 86_400.0)
