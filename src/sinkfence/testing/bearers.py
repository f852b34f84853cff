"""A lease that no store knows of, for unit tests of code that writes under one."""

from __future__ import annotations

import threading

from sinkfence.errors import LeaseLost, StaleToken
from sinkfence.testing.clock import HandClock
from sinkfence.tokens import Token, idempotency_key


class FakeLease:
    """A bearer as a live `Lease` is one, made by `fake_lease`: it ends when the test says so."""

    def __init__(self, token: Token, ttl: float, clock: HandClock) -> None:
        self._token = token
        self._clock = clock
        self._until = clock() + ttl
        self.lost: threading.Event = threading.Event()
        """Set once a sink has refused the token, or `lose` was called by the test."""
        self.refusals: list[StaleToken] = []
        """What sinks said, in their order."""

    @property
    def token(self) -> Token:
        """The token. Raises LeaseLost once the lease was lost, or its time is over by its clock."""
        if self.lost.is_set():
            raise LeaseLost(self._token, "a destination has refused its token as stale")
        if self.remaining() <= 0:
            raise LeaseLost(self._token, "its term is over")
        return self._token

    @property
    def job_id(self) -> str:
        """As `Lease.job_id`."""
        return self._token.job_id

    @property
    def generation(self) -> int:
        """As `Lease.generation`."""
        return self._token.generation

    def remaining(self) -> float:
        """Return the seconds that are left by its clock; 0.0 when it is over."""
        return max(self._until - self._clock(), 0.0)

    def key(self, step: str) -> str:
        """As `Lease.key`."""
        return idempotency_key(self.job_id, step)

    def lose(self, reason: StaleToken) -> None:
        """Hear from a sink, or from the test, that the token is stale; what concerns another is ignored."""
        if reason.token == self._token:
            self.refusals.append(reason)
            self.lost.set()


def fake_lease(
    job_id: str = "job",
    generation: int = 1,
    owner: str = "owner:0",
    *,
    ttl: float = 30.0,
    clock: HandClock | None = None,
) -> FakeLease:
    """Return a lease of this identity, `ttl` seconds long by a clock that moves when it is told to.

    Raises:
        TypeError, ValueError: as `Token`.
    """
    return FakeLease(Token(job_id, generation, owner), ttl, clock or HandClock())
