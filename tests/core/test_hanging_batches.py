"""A batch of renewals that gets no answer: it is left behind, and another connection renews the leases."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from sinkfence import Leases, Token
from sinkfence.grants import Renewals
from sinkfence.leases.heartbeat import MOST_LEFT_BEHIND
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore

JOB = "invoice-42"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: Any) -> None:
    """A batch is waited for for a moment, in place of a quarter of the ttl."""
    monkeypatch.setattr("sinkfence.leases.waits.BATCH", 0.0)
    monkeypatch.setattr("sinkfence.leases.waits.BATCH_AT_LEAST", 0.05)


class Hanging(MemoryStore):
    """A store whose batches hang, as many as it is told, until they are let go."""

    def __init__(self, hang: int) -> None:
        super().__init__()
        self.hang = hang
        self.go = threading.Event()
        self.sent = threading.Semaphore(0)
        self.answered = threading.Event()
        self.count = self.closed = 0

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """Hang, or answer."""
        self.count += 1
        self.sent.release()
        if self.count <= self.hang:
            self.go.wait()
            return super().renew_many(wanted)
        answer = super().renew_many(wanted)
        self.answered.set()
        return answer

    def close(self) -> None:
        """Note it."""
        self.closed += 1


@pytest.fixture
def beating() -> Iterator[Callable[[Hanging], Leases]]:
    """Makes managers that beat often, and lets their stores go after the test."""
    made: list[tuple[Hanging, Leases]] = []

    def make(store: Hanging) -> Leases:
        made.append((store, Leases(store, ttl=60, heartbeat=0.05)))
        return made[-1][1]

    yield make
    for store, leases in made:
        store.go.set()
        leases.close()


def test_a_batch_that_hangs_is_left_behind(beating: Any) -> None:
    """The next one is sent while it hangs. No connection is closed, whose answer may be about to come."""
    store = Hanging(1)
    with beating(store).hold(JOB) as lease:
        assert store.answered.wait(30)
        assert store.closed == 0
        assert not store.go.is_set()
        assert lease.token.generation == 1


def test_few_batches_are_left_behind(beating: Any, caplog: Any) -> None:
    """Then nothing more is sent until one of them is answered; and then the leases are renewed again."""
    store = Hanging(MOST_LEFT_BEHIND)
    leases = beating(store)
    held_up = threading.Event()
    heartbeat = leases._holders.open()._heartbeat
    again_soon = heartbeat._again_soon

    def noted(beats: Any) -> None:
        held_up.set()
        again_soon(beats)

    heartbeat._again_soon = noted
    with leases.hold(JOB) as lease:
        assert held_up.wait(30)
        assert store.count == MOST_LEFT_BEHIND
        assert store.closed == 1  # whatever else is in the pool may hang like these
        assert not store.answered.is_set()
        store.go.set()
        assert store.answered.wait(30)
        assert lease.token.generation == 1
    assert "has not answered 3 batches" in caplog.text


class Late(MemoryStore):
    """A store whose every answer comes just after its batch was left behind, as on a slow way."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: Leases | None = None
        self.answers = self.closed = 0

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """Answer once nobody waits for it."""
        assert self.leases is not None
        heartbeat = self.leases._holders.open()._heartbeat
        before = heartbeat._left_behind
        while heartbeat._left_behind == before:
            pass
        self.answers += 1
        return super().renew_many(wanted)

    def close(self) -> None:
        """Note it."""
        self.closed += 1


def test_a_store_that_is_slower_than_is_waited_for_keeps_its_connections() -> None:
    """Each answer counts, though it comes late, and no connection is closed under the next one."""
    store = Late()
    with Leases(store, ttl=60, heartbeat=0.05) as leases:
        store.leases = leases
        with leases.hold(JOB) as lease:
            before = lease.lease_until
            while store.answers < 6:
                pass
            assert lease.lease_until > before
            assert store.closed == 0


def test_an_answer_that_was_given_up_counts_all_the_same(beating: Any) -> None:
    """A batch that is answered late extends the term from when it was sent, if nothing newer has."""
    store = Hanging(MOST_LEFT_BEHIND)
    with beating(store).hold(JOB) as lease:
        for _ in range(MOST_LEFT_BEHIND):
            assert store.sent.acquire(timeout=30)
        before = lease.lease_until
        store.go.set()
        assert store.answered.wait(30)
        assert lease.lease_until > before


@pytest.mark.parametrize("places", [1, 15])
def test_a_server_process_that_stands_still_costs_no_lease(pg_url: str, pg: SqlStore, places: int) -> None:
    """The heartbeat's process is stopped: the lease is renewed by another one, however small the pool is."""
    url = pg_url.replace("postgresql:", "postgresql+psycopg:")
    store = SqlStore(sa.create_engine(url, pool_size=places, max_overflow=0))
    leases = Leases(store, ttl=60, heartbeat=0.05)
    store.check()
    with store._here().beats.connect() as connection:
        pid = connection.connection.driver_connection.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with leases.hold(JOB) as lease:
            first = lease.lease_until
            while lease.lease_until == first:
                pass
            assert pg.get(JOB).lease_until > first
    finally:
        os.kill(pid, signal.SIGCONT)
    leases.close()
    assert pg.get(JOB).owner is None
