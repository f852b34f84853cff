"""How leases are worked with here: by threads, or by an event loop, which awaits what these return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sinkfence.grants import AsyncStore, Store
from sinkfence.leases.asking import Asking
from sinkfence.leases.tenure import Tenure
from sinkfence.terms import Clock
from sinkfence.tokens import Token

L = TypeVar("L")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means(Generic[L]):
    """What one manager, its leases and what stands behind them share."""

    store: Store | AsyncStore
    asking: Asking
    """The same store, for what grants and releases."""
    beats: Store
    """The same records, for the heartbeat's thread."""
    lease: Callable[[Means[L], Tenure], L]
    arm: Callable[[Any, Token], Any]
    pause: Callable[[float], Any]
    clock: Clock
