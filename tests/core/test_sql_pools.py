"""The pool of an engine that is passed: what the store can work with, and what it must refuse."""

from __future__ import annotations

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


def test_a_pool_derived_from_that_one_is_refused(pg_url: str) -> None:
    """It is known by what it is, not by its name."""
    with pytest.raises(ValueError, match="StaticPool has one connection"):
        SqlStore(sa.create_engine(alchemy(pg_url), poolclass=Sharing))


@pytest.mark.parametrize("kind", [sa.QueuePool, sa.SingletonThreadPool])
def test_the_pool_of_an_engine_that_is_passed_is_left_alone(pg_url: str, kind: type[sa.Pool]) -> None:
    """Closing the store ends its own connections, and none of the engine's."""
    engine = sa.create_engine(alchemy(pg_url), poolclass=kind)

    def process() -> int:
        with engine.connect() as connection:
            return connection.connection.driver_connection.info.backend_pid

    before = process()
    store = SqlStore(engine)
    store.acquire(JOB, "a:1", 30.0)
    assert process() == before
    store.close()
    assert process() == before
    engine.dispose()


def test_an_engine_for_one_tenants_schema_is_refused(pg_url: str) -> None:
    """The store's statements name no schema to translate: two tenants would share their leases."""
    options = {"execution_options": {"schema_translate_map": {None: "tenant"}}}
    engine = sa.create_engine(alchemy(pg_url), **options)
    with pytest.raises(ValueError, match="search_path"):
        SqlStore(engine)
    with pytest.raises(ValueError, match="search_path"):
        sql_aio.SqlStore(create_async_engine(alchemy(pg_url), **options))
    engine.dispose()
