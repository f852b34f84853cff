"""The holders of one manager, one for each process, and what is the same for all of them."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Generic

from sinkfence.grants import check_label
from sinkfence.leases.heartbeat import L, OnLost
from sinkfence.leases.holder import CLOSED, Holder
from sinkfence.leases.means import Means
from sinkfence.process import Process, this_process
from sinkfence.terms import check_seconds, check_ttl
from sinkfence.tokens import check_text


class PerProcess(Generic[L]):
    """Made with its manager, and so before a fork: it opens nothing. See `Leases` for the arguments."""

    def __init__(
        self,
        means: Means[L],
        ttl: timedelta | float,
        heartbeat: timedelta | float | None,
        owner: str | None,
        on_lost: OnLost[L] | None,
    ) -> None:
        self._ttl = check_ttl(ttl)
        self._heartbeat = (
            None if heartbeat is None else check_seconds("heartbeat", heartbeat, 0.001, self._ttl)
        )
        label = None if owner is None else check_label(owner)
        if on_lost is not None and not callable(on_lost):
            raise TypeError(f"on_lost is called, and a {type(on_lost).__name__} can't be")
        self._make: Callable[[], Holder[L]] = lambda: Holder(means, label, on_lost)
        self.interval(self._ttl)
        # By process, without a lock: one that another thread held at the fork would stay held in the child.
        self._by_process: dict[Process, Holder[L]] = {}
        self._closed = False

    def open(self) -> Holder[L]:
        """Return this process's own, for a new lease."""
        if self._closed:
            raise RuntimeError(CLOSED)
        process = this_process()
        here = self._by_process.get(process)
        if here is None:
            here = self._by_process.setdefault(process, self._make())
        return here

    def close(self, timeout: float) -> None:
        """End all leases of this process. See `Leases.close`."""
        timeout = check_timeout(timeout)
        self._closed = True
        here = self._by_process.get(this_process())
        errors = here.close(timeout) if here else []
        if errors:
            raise ExceptionGroup(
                "not every lease could be released: those left run out by themselves", errors
            )

    def length(self, ttl: timedelta | float | None) -> float:
        """Return a lease's length in seconds."""
        return self._ttl if ttl is None else check_ttl(ttl)

    def interval(self, ttl: float) -> float:
        """Return the seconds between two renewals of a lease of that length."""
        interval = ttl / 3 if self._heartbeat is None else self._heartbeat
        if interval >= ttl / 2:
            raise ValueError(
                f"heartbeat must be less than half of the ttl ({interval:g} s of {ttl:g} s): "
                "one that comes late or fails must not cost the lease"
            )
        return interval


def check_wait(wait: timedelta | float) -> float:
    """Return how long to try for a job that is held, in seconds."""
    return check_seconds("wait", wait, 0.0, math.inf)


def check_timeout(timeout: float) -> float:
    """Return how long to wait for an end, in seconds."""
    return min(check_seconds("timeout", timeout, 0.0, math.inf), threading.TIMEOUT_MAX)


def check_prefix(prefix: str) -> str:
    """Return what job_ids may start with: nothing, or such a text as they are."""
    return "" if prefix == "" else check_text("prefix", prefix)


def check_store(store: object, *, loop: bool = False) -> None:
    """Refuse what is no store, or is one for an event loop where there is none, or the other way round."""
    kind = type(store)
    acquire = getattr(kind, "acquire", None)
    # Locks and pools can acquire, too.
    if acquire is None or not hasattr(kind, "reacquire_above"):
        raise TypeError(f"{kind.__name__} is no store: pass SqlStore(...), around a URL or an engine")
    if loop and not hasattr(store, "sync"):
        raise TypeError(
            f"this {kind.__name__} is not for an event loop: use that of sinkfence.stores.sql.aio"
        )
    if not loop and inspect.iscoroutinefunction(acquire):
        raise TypeError(f"this {kind.__name__} is for an event loop: use sinkfence.aio.Leases with it")
