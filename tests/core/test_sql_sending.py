"""How the SQL store sends its statements: prepared or not, in one round trip; and what an error leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

from sinkfence.errors import LeaseHeld
from sinkfence.stores.sql import SqlStore, dialects, records, sessions
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.stores.sql.dialects import Query
from sinkfence.stores.sql.sending import send, text
from sinkfence.tokens import Token

JOB = "invoice-42"
OFTEN = 8
"""More than the five times after which psycopg prepares a statement."""


@contextmanager
def session_of(store: SqlStore) -> Iterator[psycopg.Connection]:
    """The one connection that the store has in its pool, as the driver has it."""
    with store._here().work.connect() as connection:
        yield connection.connection.driver_connection


def prepared_in(store: SqlStore) -> list[str]:
    """The statements that its session has prepared."""
    with session_of(store) as session:
        return [row[0] for row in session.execute("SELECT statement FROM pg_prepared_statements")]


def a_turn(store: SqlStore, owner: str) -> None:
    """Acquire, renew, give back."""
    token = store.acquire(JOB, owner, 30.0).token
    store.renew(token, 30.0)
    store.release(token)


def test_what_is_sent_often_is_prepared(pg: SqlStore) -> None:
    """In a session that nobody else is let into, statements are planned once: acquire, renew and release."""
    for i in range(OFTEN):
        a_turn(pg, f"a:{i}")
    assert len(prepared_in(pg)) == 3


def test_no_two_sessions_name_their_statements_alike(
    pg_url: str, open_store: Callable[..., SqlStore]
) -> None:
    """Were they to meet in one process, one would miss its statement, and not execute the other's."""
    names: list[str] = []
    for store in open_store(pg_url), open_store(pg_url):
        for i in range(OFTEN):
            a_turn(store, f"a:{i}")
        with session_of(store) as session:
            names += [row[0] for row in session.execute("SELECT name FROM pg_prepared_statements")]
    assert len(names) == len(set(names)) == 6


def test_without_names_apart_nothing_is_prepared(
    pg_url: str, open_store: Callable[..., SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A psycopg that numbers its statements in another way is not trusted with them."""
    monkeypatch.setattr(sessions, "_start_names_at_random", lambda _: False)
    store = open_store(pg_url)
    for i in range(OFTEN):
        a_turn(store, f"a:{i}")
    assert prepared_in(store) == []


def test_an_engine_may_say_that_nothing_is_prepared(pg_url: str, open_store: Callable[..., SqlStore]) -> None:
    """prepare_threshold=None of an engine's own connect_args stays as it is."""
    url = pg_url.replace("postgresql:", "postgresql+psycopg:")
    store = open_store(sa.create_engine(url, connect_args={"prepare_threshold": None}))
    for i in range(OFTEN):
        a_turn(store, f"a:{i}")
    assert prepared_in(store) == []


def test_a_loops_statements_are_prepared_too(pg_url: str, pg: SqlStore, admin: psycopg.Connection) -> None:
    """The same of the connections of an event loop, by psycopg; and what became of them is sent again."""

    async def main() -> None:
        store = sql_aio.SqlStore(pg_url)
        token = (await store.acquire(JOB, "a:1", 30.0)).token
        for _ in range(OFTEN):
            await store.renew(token, 30.0)
        (engine,) = store._engines.values()
        async with engine.connect() as connection:
            session = (await connection.get_raw_connection()).driver_connection
            rows = await session.execute("SELECT count(*) FROM pg_prepared_statements")
            assert await rows.fetchone() == (1,)
            session.pgconn.exec_(b"DEALLOCATE ALL")  # behind psycopg's back
        await store.renew(token, 30.0)
        await store.release(token)
        await store.close()

    asyncio.run(main())
    assert pg.get(JOB).owner is None


@pytest.mark.parametrize("meddling", [b"DEALLOCATE ALL", b"PREPARE _pg3_1 AS SELECT 1"])
def test_what_was_prepared_and_is_lost_is_sent_again(pg: SqlStore, meddling: bytes) -> None:
    """A session without its statements, or with one of that name: told at once, and sent again."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    for _ in range(OFTEN):
        pg.renew(token, 30.0)
    with session_of(pg) as session:
        assert session.pgconn.exec_(meddling).status == psycopg.pq.ExecStatus.COMMAND_OK
    pg.renew(token, 30.0)
    for _ in range(OFTEN):
        pg.get(JOB)
    assert pg.get(JOB).generation == 1


def test_a_call_is_one_round_trip(pg: SqlStore, tmp_path: Path) -> None:
    """Each of acquire, renew, complete, and a batch, is answered once and for all, prepared or not."""
    for i in range(OFTEN):
        a_turn(pg, f"a:{i}")
        pg.reopen(JOB)
    trace = (tmp_path / "trace").open("w+")
    with session_of(pg) as session:
        session.pgconn.trace(trace.fileno())
    token = pg.acquire(JOB, "a:1", 30.0).token
    pg.renew(token, 30.0)
    pg.complete(token, "[1]")
    with session_of(pg) as session:
        session.pgconn.untrace()
    trace.seek(0)
    assert trace.read().count("ReadyForQuery") == 3
    trace.close()


def test_of_many_connections_that_are_gone_one_is_met(
    pg_url: str, open_store: Callable[..., SqlStore], admin: psycopg.Connection
) -> None:
    """A restart of the server ends all of them: the first error tells of the others; the call succeeds."""
    store = open_store(pg_url)
    store.get(JOB)
    with ExitStack() as stack:
        held = [stack.enter_context(store._here().work.connect()) for _ in range(12)]
        pids = [connection.connection.driver_connection.info.backend_pid for connection in held]
    admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM unnest(%s::int[]) pid", [pids])
    assert store.acquire(JOB, "a:1", 30.0).token == Token(JOB, 1, "a:1")


def test_as_many_threads_as_may_connect_keep_their_connections(
    pg_url: str, open_store: Callable[..., SqlStore]
) -> None:
    """Fifteen at once have a session each, the next fifteen the same ones."""
    store = open_store(pg_url)
    store.get(JOB)
    seen = []
    for _ in range(2):
        with ExitStack() as stack:
            held = [stack.enter_context(store._here().work.connect()) for _ in range(15)]
            seen.append({each.connection.driver_connection.info.backend_pid for each in held})
    assert seen[0] == seen[1]


@pytest.mark.usefixtures("unhurried")
def test_an_interrupted_call_leaves_nothing_behind(
    pg: SqlStore, pg_url: str, admin: psycopg.Connection
) -> None:
    """Ctrl-C while a row is waited for: it is raised, nothing is acquired, and the store goes on."""
    pg.raise_above(JOB, 1)
    waiting = (
        "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE NOT granted AND datname = current_database()"
    )

    def interrupt() -> None:
        while not admin.execute(waiting).fetchone():
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with psycopg.connect(pg_url) as other:
        other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            pg.acquire(JOB, "a:1", 30.0)
        thread.join()
    assert pg.get(JOB).generation == 1
    assert pg.acquire(JOB, "a:2", 30.0).token.generation == 2
    with pytest.raises(LeaseHeld):
        pg.acquire(JOB, "b:3", 30.0)


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("kind", [Soft, TimeoutError])
def test_what_a_signals_handler_raises_passes_untouched(
    pg: SqlStore, pg_url: str, admin: psycopg.Connection, kind: type[Exception]
) -> None:
    """Of whatever kind it is, it is no error of the driver's: nothing is sent again, the connection goes."""
    pg.raise_above(JOB, 1)
    with session_of(pg) as session:
        pid = session.info.backend_pid

    def handler(*_: object) -> None:
        raise kind("now")

    def interrupt() -> None:
        while not admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", [pid]).fetchone():
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(kind, match="now"):
                pg.acquire(JOB, "a:1", 30.0)
            thread.join()
            with session_of(pg) as session:
                assert session.info.backend_pid != pid
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_an_interrupted_acquire_is_granted_later_is_given_back(pg: SqlStore) -> None:
    """The server process stands still, and goes on when a look has found nothing yet: nobody has the job."""
    pg.get(JOB)
    with session_of(pg) as session:
        pid, libpq = session.info.backend_pid, session.pgconn
    looked, fetch = threading.Event(), pg.fetch

    def look(query: Query) -> Any:
        rows = fetch(query)
        looked.set()
        return rows

    def handler(*_: object) -> None:
        raise Soft

    def interrupt() -> None:
        while libpq.transaction_status != TransactionStatus.ACTIVE:
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    pg.fetch = look
    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    os.kill(pid, signal.SIGSTOP)
    try:
        thread.start()
        with pytest.raises(Soft):
            pg.acquire(JOB, "a:1", 60.0)
        assert looked.wait(30)
    finally:
        os.kill(pid, signal.SIGCONT)
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    until = time.monotonic() + 30
    while (found := pg.get(JOB)) is None or found.owner:
        assert time.monotonic() < until
    assert found.generation == 1


ALTER = 'ALTER TABLE sinkfence_lease ALTER owner TYPE varchar COLLATE "C"'
STALE = 8
"""More connections than a call has attempts."""


def test_an_altered_table_makes_no_call_fail(pg: SqlStore, admin: psycopg.Connection) -> None:
    """What was prepared before an ALTER TABLE is refused for ever, by each connection: all are dropped."""
    pg.acquire(JOB, "a:1", 30.0)
    with ExitStack() as stack:
        for held in [stack.enter_context(pg._here().work.connect()) for _ in range(STALE)]:
            for _ in range(OFTEN):
                send(held, records.look(dialects.POSTGRESQL, JOB))
    admin.execute(ALTER)
    assert pg.get(JOB).owner == "a:1"


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_altered_table_makes_no_loop_fail(
    pg_url: str, pg: SqlStore, admin: psycopg.Connection, driver: str
) -> None:
    """The same of the connections of an event loop."""
    pg.acquire(JOB, "a:1", 30.0)

    async def main() -> None:
        store = sql_aio.SqlStore(pg_url.replace("postgresql:", f"postgresql+{driver}:"))
        await store.get(JOB)
        (engine,) = store._engines.values()
        query = records.look(dialects.POSTGRESQL, JOB)
        async with AsyncExitStack() as stack:
            for held in [await stack.enter_async_context(engine.connect()) for _ in range(STALE)]:
                for _ in range(OFTEN):
                    await held.execute(text(query.sql), query.params)
        admin.execute(ALTER)
        found = await store.get(JOB)
        assert found is not None
        assert found.owner == "a:1"
        await store.close()

    asyncio.run(main())


DEMOTE = "SET default_transaction_read_only = on"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_demoted_server_makes_no_call_fail(
    pg_url: str, open_store: Callable[..., SqlStore], driver: str
) -> None:
    """After a switchover the old primary only refuses to write: all connections are made anew."""
    pg = open_store(pg_url.replace("postgresql:", f"postgresql+{driver}:"))
    token = pg.acquire(JOB, "a:1", 30.0).token
    pg.check()
    with ExitStack() as stack:
        for engine in pg._here().work, pg._here().beats:
            for held in [stack.enter_context(engine.connect()) for _ in range(STALE)]:
                held.exec_driver_sql(DEMOTE)
    assert pg.renew_many([(token, 30.0)]).renewed.keys() == {token}
    pg.release(token)
    assert pg.acquire(JOB, "b:2", 30.0).token.generation == 2


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_demoted_server_makes_no_loop_fail(pg_url: str, driver: str) -> None:
    """The same of the connections of an event loop."""

    async def main() -> None:
        store = sql_aio.SqlStore(pg_url.replace("postgresql:", f"postgresql+{driver}:"))
        token = (await store.acquire(JOB, "a:1", 30.0)).token
        (engine,) = store._engines.values()
        async with AsyncExitStack() as stack:
            for held in [await stack.enter_async_context(engine.connect()) for _ in range(STALE)]:
                await held.exec_driver_sql(DEMOTE)
        await store.release(token)
        await store.close()

    asyncio.run(main())


def test_where_nobody_may_write_the_database_says_so(
    pg: SqlStore, pg_url: str, admin: psycopg.Connection
) -> None:
    """A standby, or a database that is only read from: its own error, after a few connections."""
    name = admin.info.dbname
    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with pytest.raises(sa.exc.DBAPIError, match="read-only"):
            pg.acquire(JOB, "a:1", 30.0)
    finally:
        admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
