"""The pool of an engine that is passed: what the store can work with, and what it must refuse."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio

JOB = "invoice-42"


def alchemy(url: str) -> str:
    """The URL with its driver."""
    return url.replace("postgresql:", "postgresql+psycopg:")


def test_a_pool_of_one_connection_for_all_is_refused(url: str) -> None:
    """Two threads' statements would mix, and one get the other's answer: it is said at once."""
    engine = sa.create_engine(alchemy(url), poolclass=sa.StaticPool)
    with pytest.raises(ValueError, match="StaticPool has one connection"):
        SqlStore(engine)
    engine.dispose()


def test_a_loops_pool_of_one_connection_is_refused(pg_url: str) -> None:
    """The same of an engine for an event loop."""
    with pytest.raises(ValueError, match="StaticPool has one connection"):
        sql_aio.SqlStore(create_async_engine(alchemy(pg_url), poolclass=sa.StaticPool))


@pytest.mark.parametrize("kind", [sa.NullPool, sa.QueuePool, sa.SingletonThreadPool, sa.AssertionPool])
def test_other_pools_serve(pg_url: str, kind: type[sa.Pool]) -> None:
    """Whatever gives each thread a connection of its own is used as it is."""
    engine = sa.create_engine(alchemy(pg_url), poolclass=kind)
    store = SqlStore(engine)
    for turn in range(3):
        store.release(store.acquire(JOB, f"a:{turn}", 30.0).token)
    assert store.get(JOB).generation == 3
    store.close()


class Sharing(sa.StaticPool):
    """A pool as somebody may write it."""


class Shared(sa.pool.Pool):
    """One connection for all, and no relative of StaticPool's."""

    def _do_get(self) -> sa.pool.ConnectionPoolEntry:
        if not hasattr(self, "only"):
            self.only = self._create_connection()
        return self.only

    def _do_return_conn(self, record: sa.pool.ConnectionPoolEntry) -> None:
        pass

    def recreate(self) -> Shared:
        return Shared(self._creator, dialect=self._dialect)

    def dispose(self) -> None:
        pass


def test_a_pool_derived_from_that_one_is_refused(pg_url: str) -> None:
    """It is known by what it is, not by its name."""
    with pytest.raises(ValueError, match="StaticPool has one connection"):
        SqlStore(sa.create_engine(alchemy(pg_url), poolclass=Sharing))


def test_a_connection_that_is_in_use_is_refused(pg_url: str, pg: SqlStore) -> None:
    """A pool of whatever make that hands one out twice: the second one is told, and the first is answered."""
    store = SqlStore(sa.create_engine(alchemy(pg_url), poolclass=Shared))
    store.get(JOB)
    inside, go = threading.Event(), threading.Event()
    answers: list[object] = []

    def wait(fetch: object) -> str:
        inside.set()
        assert go.wait(30)
        return "answered"

    thread = threading.Thread(target=lambda: answers.append(store._run(wait)))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(ValueError, match="one connection twice"):
        store.acquire(JOB, "a:1", 30.0)
    go.set()
    thread.join()
    assert answers == ["answered"]
    assert store.acquire(JOB, "a:1", 30.0).token.generation == 1
    store._here().work.pool.only.close()
    store.close()
