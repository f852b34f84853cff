"""What an author says of a lease store, so that it can be exercised, and the bench for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from sinkfence.grants import Grant, Record, Store
from sinkfence.testing.promises import claim, must
from sinkfence.tokens import Token

HOUR = 3600.0
MOMENT = 0.05
"""The shortest ttl, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """What a store claims. What is not claimed is not tried, and the report says what that means."""

    durable: bool = claim("its count ends with its process: it must not arm a sink that lives on")
    """A new handle goes on counting where another one stopped, after that one is closed."""
    concurrent: bool = claim("nothing is known of workers at the same time")
    """Several handles may be used at once, each by a thread of its own."""
    own_clock: bool = claim("its clock is this process's")
    """Its clock is another one than this process's `time.time`."""
    loses_answers: bool = claim("nothing is known of calls whose answer is lost")
    """`open(losing=True)` is possible: a claim of the harness."""
    goes_back: bool = claim("nothing is known of it after a backup was put back")
    """`backup()` is possible, as `Restorable` says: a claim of the harness."""


class StoreHarness(Protocol):
    """How to use one store."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """What is claimed."""
        ...

    def open(self, *, losing: bool = False) -> Store:
        """Return a *new* handle on the same records, as another process would have it.

        With `losing`, the answer to the next call is lost on its way, after the call took effect.
        """
        ...

    def let_pass(self, seconds: float) -> None:
        """Return once so much time has passed by the store's clock: move it, or wait."""
        ...


class Restorable(StoreHarness, Protocol):
    """A harness of a store whose backup can be put back."""

    def backup(self) -> Callable[[], None]:
        """Keep all records as they are, and return what puts them back, whichever handles are open."""
        ...


class StoreBench:
    """One handle of a store and one job that was never acquired, and has no generation above `start`."""

    def __init__(self, harness: StoreHarness, store: Store, job_id: str, examples: int, start: int) -> None:
        self.harness = harness
        self.examples = examples
        self.store = store
        self.job_id = job_id
        self.start = start

    def acquire(self, owner: str = "a", ttl: float = HOUR) -> Token:
        """Acquire the job, and check that the grant is what was asked for."""
        return granted(self.store.acquire(self.job_id, owner, ttl), self.job_id, owner)

    def lapsed(self, owner: str = "a") -> Token:
        """Acquire the job, and let the lease run out."""
        token = self.acquire(owner, MOMENT)
        self.harness.let_pass(1.2 * MOMENT)
        return token

    def record(self) -> Record:
        """Return the job's record."""
        record = self.store.get(self.job_id)
        if record is None:
            raise AssertionError("the job's record is gone")
        return record

    def state(self) -> tuple[object, ...]:
        """Return what may not change by a call that is refused."""
        record = self.record()
        return record.generation, record.owner, record.state, record.lease_until, record.result

    def counts(self, token: Token, before: int) -> None:
        """Raise Broken unless the token's generation is the one after `before`."""
        distance = token.generation - before
        right = distance > 0 if self.store.jumps else distance == 1
        must(right, f"generation {token.generation} was issued after {before}")

    @contextmanager
    def elsewhere(self, *, losing: bool = False) -> Generator[StoreBench]:
        """Give the same job by a new handle."""
        with _handle(self.harness, losing) as store:
            yield StoreBench(self.harness, store, self.job_id, self.examples, self.start)


def granted(grant: Grant, job_id: str, owner: str) -> Token:
    """Return the token of a grant, or raise Broken where it is somebody else's."""
    token = grant.token
    must((token.job_id, token.owner) == (job_id, owner), f"granted was {token}, asked for by {owner!r}")
    return token


@contextmanager
def store_bench(harness: StoreHarness, examples: int, start: int) -> Generator[StoreBench]:
    """Give a bench with a job of its own, so that one store serves for many runs."""
    with _handle(harness) as store:
        job_id = f"contract/{secrets.token_hex(8)}"
        if start:
            store.raise_above(job_id, start)
        yield StoreBench(harness, store, job_id, examples, start)


@contextmanager
def _handle(harness: StoreHarness, losing: bool = False) -> Generator[Store]:
    store = harness.open(losing=True) if losing else harness.open()
    try:
        yield store
    finally:
        store.close()
