"""A call to the database that a signal's handler breaks into: what the handler raises is what comes out."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from sinkfence.stores.sql import SqlStore

JOB = "invoice-42"
WAITING = (
    "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE NOT granted AND datname = current_database()"
)
CHECKING = "LOCK TABLE sinkfence_schema"
CREATING = "SELECT pg_advisory_xact_lock(7239414406513180001)"


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@contextmanager
def at_the_wait(admin: psycopg.Connection, act: Callable[[int], object]) -> Iterator[None]:
    """Act once a server process waits for a lock."""

    def watch() -> None:
        while not (row := admin.execute(WAITING).fetchone()):
            pass
        act(row[0])

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.fixture
def raising() -> Iterator[Callable[[type[BaseException]], Callable[[int], object]]]:
    """Has this process's main thread raise an error, out of a signal's handler."""
    before = signal.getsignal(signal.SIGUSR1)

    def raises(kind: type[BaseException]) -> Callable[[int], object]:
        def handler(*_: object) -> None:
            raise kind("now")

        signal.signal(signal.SIGUSR1, handler)
        return lambda _: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    yield raises
    signal.signal(signal.SIGUSR1, before)


CALLS: dict[str, tuple[str, Callable[[SqlStore], object]]] = {
    "acquire": (CHECKING, lambda store: store.acquire(JOB, "a:1", 30.0)),
    "check": (CHECKING, lambda store: store.check()),
    "create_schema": (CREATING, lambda store: store.create_schema()),
}


@pytest.mark.parametrize("kind", [Soft, TimeoutError, KeyboardInterrupt])
@pytest.mark.parametrize("call", CALLS)
def test_the_first_call_raises_what_the_handler_did(
    pg_url: str,
    admin: psycopg.Connection,
    open_store: Callable[..., SqlStore],
    raising: Callable[[type[BaseException]], Callable[[int], object]],
    call: str,
    kind: type[BaseException],
) -> None:
    """The first call looks at the tables, and create_schema() makes them: no rollback's error is told."""
    store = open_store(pg_url)
    lock, ask = CALLS[call]
    with psycopg.connect(pg_url) as other:
        other.execute(lock)
        with at_the_wait(admin, raising(kind)), pytest.raises(kind, match="now"):
            ask(store)
    store.acquire("another", "b:2", 30.0)


def test_create_schema_whose_session_ends_is_repeated(
    pg_url: str, admin: psycopg.Connection, open_store: Callable[..., SqlStore]
) -> None:
    """There is nothing left to roll back then, and SQLAlchemy's word about that is not the outcome."""

    def end(pid: int) -> None:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        other.rollback()

    store = open_store(pg_url)
    with psycopg.connect(pg_url) as other:
        other.execute(CREATING)
        with at_the_wait(admin, end):
            store.create_schema()
