"""Leases for an event loop: the same promises, and what only a loop can do to them."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

import sinkfence
from sinkfence import JobCompleted, LeaseHeld, LeaseLost, OutcomeUnknown, StaleToken, Token, aio
from sinkfence.marks import Mark, MemoryMarks
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.testing import HandClock

JOB = "invoice-42"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    run.__doc__ = test.__doc__
    run.__name__ = test.__name__
    run.__signature__ = inspect.signature(test)
    return run


@pytest.fixture(params=["psycopg", "asyncpg"])
def pg_async_url(request: pytest.FixtureRequest, pg_url: str) -> str:
    """The URL of a PostgreSQL store, by each driver in turn."""
    return pg_url.replace("postgresql://", f"postgresql+{request.param}://")


@pytest.fixture(params=["psycopg", "asyncpg", "sqlite"])
def async_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store, of each kind in turn."""
    if request.param == "sqlite":
        return request.getfixturevalue("lite_url")
    return request.getfixturevalue("pg_url").replace("postgresql://", f"postgresql+{request.param}://")


@asynccontextmanager
async def leases_at(url: Any, **options: Any) -> AsyncIterator[aio.Leases]:
    """A manager of leases, closed with its store."""
    async with aio.Leases(sql_aio.SqlStore(url), **options) as leases:
        yield leases


async def until_blocked(admin: psycopg.Connection) -> None:
    """Wait until a session of the store waits for a lock."""
    query = (
        "SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE NOT granted AND datname = current_database()"
    )
    while not admin.execute(query).rowcount:
        await asyncio.sleep(0)


class Ledger(MemoryMarks):
    """A durable sink for an event loop."""

    durable = True

    async def arm(self, bearer: Any) -> None:
        """Arm, after whatever else the loop has to do."""
        await asyncio.sleep(0)
        super().arm(bearer)


@in_loop
async def test_hold_arms_both_kinds_of_sinks_and_releases(async_url: str) -> None:
    """The sinks know the new owner before the body reads anything; at the end the job is free."""
    sinks = [Ledger(), MemoryMarks()]
    async with leases_at(async_url) as leases:
        async with leases.hold(JOB, arm=sinks) as lease:
            assert [sink.mark(JOB) for sink in sinks] == [Mark(1, lease.token.owner)] * 2
            before = lease.lease_until
            await lease.renew()
            assert lease.lease_until > before
            with pytest.raises(LeaseHeld):
                await leases.acquire(JOB)
        assert (await leases.get(JOB)).owner is None
        async with leases.hold(JOB) as lease:
            await lease.complete({"rows": 17})
            await lease.complete({"rows": 17})
        with pytest.raises(JobCompleted) as done:
            await leases.acquire(JOB)
        assert done.value.result == {"rows": 17}
        await leases.reopen(JOB)
        await leases.raise_above(JOB, 5_000_000_000)
        lease = await leases.acquire(JOB)
        assert [record.generation for record in await leases.list("inv")] == [5_000_000_001]
    with pytest.raises(LeaseLost, match="released"):
        _ = lease.token
    with pytest.raises(RuntimeError, match="closed"):
        await leases.acquire(JOB)


class Passing:
    """A sink around another, whose answer it passes on."""

    durable = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def arm(self, bearer: Any) -> Any:
        """Arm, or return what is to be awaited."""
        return self.inner.arm(bearer)


@in_loop
async def test_what_passes_on_to_an_asynchronous_sink_is_awaited(lite_url: str) -> None:
    """Not seen to be asynchronous, it would be called, and nothing armed."""
    sink = Ledger()
    async with leases_at(lite_url) as leases, leases.hold(JOB, arm=[Passing(sink), Passing(Passing(sink))]):
        assert sink.mark(JOB).generation == 1


class Elsewhere(Passing):
    """A sink that is armed in an event loop of another thread, or says so, and answers with the future."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(Ledger())
        self.loop = loop

    def arm(self, bearer: Any) -> Any:
        """Have it armed by the loop."""
        return asyncio.run_coroutine_threadsafe(self.inner.arm(bearer), self.loop)


@in_loop
async def test_a_future_of_another_thread_is_awaited(lite_url: str) -> None:
    """What an arm() that is called in a thread hands back to the loop has armed before the body runs."""
    sink = Elsewhere(asyncio.get_running_loop())
    async with leases_at(lite_url) as leases, leases.hold(JOB, arm=[sink]):
        assert sink.inner.mark(JOB).generation == 1


@in_loop
async def test_an_arm_that_looks_for_the_loop_is_told_where_it_is(lite_url: str) -> None:
    """An arm() that is no coroutine function runs in a thread: its error says so, and nothing is held."""

    class Looking(Passing):
        def arm(self, bearer: Any) -> Any:
            return asyncio.get_running_loop().create_future()

    async with leases_at(lite_url) as leases:
        with pytest.raises(RuntimeError) as failed:
            async with leases.hold(JOB, arm=[Looking(None)]):
                pytest.fail("the body must not run")
        assert any("async def" in note for note in failed.value.__notes__)
        assert (await leases.get(JOB)).owner is None


def test_without_a_loop_what_is_to_be_awaited_is_refused(lite: SqlStore) -> None:
    """Nothing is armed by an answer that nobody awaits; the job is given back."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for sink in (Passing(Ledger()), Elsewhere(loop)):
        with (
            pytest.raises(TypeError, match=r"sinkfence\.aio"),
            sinkfence.Leases(lite).hold(JOB, arm=[sink]),
        ):
            pytest.fail("the body must not run")
        assert lite.get(JOB).owner is None
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@in_loop
async def test_a_stale_owner_does_not_jump_ahead_by_the_repair(async_url: str) -> None:
    """C97: A acquires and is paused; B acquires and arms; A arms, is refused, and B keeps its lease."""
    sink = Ledger()
    async with leases_at(async_url) as leases:

        class Paused(Ledger):
            async def arm(self, bearer: Any) -> None:
                await leases.reopen(JOB)
                await sink.arm((await leases.acquire(JOB)).token)

        with pytest.raises(StaleToken) as refused:
            async with leases.hold(JOB, arm=[Paused(), sink]):
                pytest.fail("the body must not run")
        assert refused.value.mark == 2
        record = await leases.get(JOB)
        assert sink.mark(JOB) == Mark(2, record.owner)
        assert record.generation == 2


@in_loop
async def test_a_store_that_went_back_is_raised_above_the_mark(async_url: str) -> None:
    """C40, C98: a sink is ahead, or knows the number under another owner: the record is raised above it."""
    async with leases_at(async_url) as leases:
        for ahead in (1, 41):
            ledger = Ledger()
            await ledger.arm(Token(JOB, ahead, "lost:1"))
            async with leases.hold(JOB, arm=[ledger]) as lease:
                assert lease.generation == ahead + 1
                assert ledger.mark(JOB) == Mark(lease.generation, lease.token.owner)
        with pytest.raises(StaleToken):
            async with leases.hold(JOB) as lease:
                raise StaleToken(lease.token, 80)
        assert lease.lost.is_set()
        assert (await leases.acquire(JOB)).generation > 80


@in_loop
async def test_an_answer_that_was_lost_is_found_again(pg_async_url: str, pg_url: str, wire: Any) -> None:
    """C99: an acquisition, renewal and completion without an answer is repeated, and done once."""
    port = psycopg.conninfo.conninfo_to_dict(pg_url)["port"]
    far = pg_async_url.replace(f":{port}/", f":{wire.port}/").partition("?")[0]
    store = sql_aio.SqlStore(far, sync=pg_url)
    async with aio.Leases(store) as leases:
        await leases.get("a first call, so that the next one is the first on a connection that is there")
        wire.lose_answers = 1
        lease = await leases.acquire(JOB)
        assert lease.generation == 1
        for call in (lease.renew, lease.complete):
            await leases.get(JOB)
            wire.lose_answers = 1
            await call()
            assert wire.lose_answers == 0
        assert (await leases.get(JOB)).state == "done"


@pytest.mark.usefixtures("unhurried")
@in_loop
async def test_a_cancelled_acquire_leaves_nothing(
    pg_async_url: str, pg_url: str, admin: psycopg.Connection
) -> None:
    """Its answer is awaited, what was granted is given back, and no transaction is left open."""
    async with leases_at(pg_async_url) as leases:
        await (await leases.acquire(JOB)).release()
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
            acquiring = asyncio.create_task(leases.acquire(JOB))
            await until_blocked(admin)
            acquiring.cancel()
            await asyncio.sleep(0)
            assert not acquiring.done()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        record = await leases.get(JOB)
        assert (record.generation, record.owner) == (2, None)
        query = "SELECT FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
        assert admin.execute(query).rowcount == 0


@pytest.mark.usefixtures("unhurried")
@in_loop
async def test_a_task_cancelled_twice_goes_at_once_and_leaves_nothing(
    pg_async_url: str, pg_url: str, pg: SqlStore, admin: psycopg.Connection
) -> None:
    """Who doesn't wait for the answer is gone before it comes; what was granted is given back."""
    async with leases_at(pg_async_url) as leases:
        await (await leases.acquire(JOB)).release()
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
            acquiring = asyncio.create_task(leases.acquire(JOB))
            await until_blocked(admin)
            for _ in range(2):
                acquiring.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await acquiring
    record = pg.get(JOB)
    assert (record.generation, record.owner) == (2, None)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("where", ["acquiring", "body"])
@in_loop
async def test_a_scope_of_anyio_leaves_no_lease(
    pg_async_url: str, pg_url: str, pg: SqlStore, admin: psycopg.Connection, where: str
) -> None:
    """It cancels at each await again (Starlette does so when a client has gone): the job is free then."""
    async with leases_at(pg_async_url) as leases:
        await (await leases.acquire(JOB)).release()
        with psycopg.connect(pg_url) as other, anyio.CancelScope() as scope:
            if where == "body":
                async with leases.hold(JOB):
                    scope.cancel()
                    await asyncio.Event().wait()
            other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
            async with asyncio.TaskGroup() as group:
                group.create_task(until_blocked(admin)).add_done_callback(lambda _: scope.cancel())
                await leases.acquire(JOB)
        assert scope.cancelled_caught
    record = pg.get(JOB)
    assert (record.generation, record.owner) == (2, None)


@pytest.mark.usefixtures("unhurried")
def test_a_loop_that_ends_says_what_may_be_left(
    pg_async_url: str, pg_url: str, pg: SqlStore, admin: psycopg.Connection, caplog: Any
) -> None:
    """asyncio.run ends all tasks, the one that hears the answer too: a lease may be held, says the log."""
    store = sql_aio.SqlStore(create_async_engine(pg_async_url.partition("?")[0], poolclass=NullPool))
    pg.release(pg.acquire(JOB, "a:1", 30.0).token)

    async def main() -> asyncio.Task[aio.Lease]:
        acquiring = asyncio.create_task(aio.Leases(store).acquire(JOB))
        await until_blocked(admin)
        return acquiring

    with psycopg.connect(pg_url) as other:
        other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
        assert asyncio.run(main()).cancelled()
    store.sync.close()
    assert "it may be held until its ttl is over" in caplog.text


@in_loop
async def test_a_release_that_gets_no_answer_keeps_nobody(
    pg_async_url: str, pg_url: str, wire: Any, monkeypatch: Any, caplog: Any
) -> None:
    """A body that is over goes on without the store, which lets the lease run out; release() says so."""
    monkeypatch.setattr("sinkfence.leases.waits.LEAVING", 0.05)
    port = psycopg.conninfo.conninfo_to_dict(pg_url)["port"]
    far = pg_async_url.replace(f":{port}/", f":{wire.port}/").partition("?")[0]
    store = sql_aio.SqlStore(far, sync=pg_url)
    async with aio.Leases(store) as leases:
        async with leases.hold(JOB):
            lease = await leases.acquire("another")
            wire.swallow = True
        assert "did not answer: repeat" in caplog.text
        with pytest.raises(OutcomeUnknown):
            await lease.release()
        wire.close()


@in_loop
async def test_a_repair_that_comes_too_late_is_given_back(lite_url: str, monkeypatch: Any) -> None:
    """Nobody waits for a store that hangs while it is raised above a mark, and nobody has the job then."""
    monkeypatch.setattr("sinkfence.leases.waits.LEAVING", 0.05)
    go, released = asyncio.Event(), asyncio.Event()

    class Late(sql_aio.SqlStore):
        async def reacquire_above(self, *args: Any) -> Any:
            await go.wait()
            return await super().reacquire_above(*args)

        async def release(self, token: Token, conn: object = None) -> None:
            if token.generation == 42:
                await super().release(token)
                released.set()

    async with aio.Leases(Late(lite_url)) as leases:
        with pytest.raises(StaleToken):
            async with leases.hold(JOB) as lease:
                raise StaleToken(lease.token, 41)
        go.set()
        await released.wait()
        record = await leases.get(JOB)
        assert (record.generation, record.owner) == (42, None)


@in_loop
async def test_closing_shares_its_time(lite_url: str, monkeypatch: Any) -> None:
    """What cancelled tasks have left, and what is to be released, have `timeout` together."""
    clock, left = HandClock(), list[float]()
    leases = aio.Leases(sql_aio.SqlStore(lite_url), _clock=clock)

    async def drain(timeout: float) -> None:
        assert timeout == 10
        clock.advance(7)

    monkeypatch.setattr(leases._asking, "drain", drain)
    monkeypatch.setattr(leases._holders, "close", left.append)
    await leases.close(timeout=10)
    assert left == [3]


@in_loop
async def test_a_loops_threads_that_are_all_busy_keep_no_lease_waiting(async_url: str) -> None:
    """What a user has the loop's threads do may wait for a lease: the store does without them."""
    loop, done, before = asyncio.get_running_loop(), threading.Event(), set(threading.enumerate())
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, done.wait)
    async with leases_at(async_url) as leases:
        lease = await leases.acquire(JOB)
        await lease.renew()
        await lease.release()
        await leases.acquire(JOB)
    done.set()
    await busy
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("sinkfence-"):
            thread.join()  # none is left behind


@in_loop
async def test_waiting_can_be_cancelled_at_once(async_url: str) -> None:
    """While it waits for a job that is held, a task goes without asking again."""
    pausing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def pause(seconds: float) -> None:
        pausing.set_result(None)
        await asyncio.Event().wait()

    async with leases_at(async_url, _pause=pause) as leases:
        lease = await leases.acquire(JOB)
        waiting = asyncio.create_task(leases.acquire(JOB, wait=600))
        await pausing
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await lease.renew()


@pytest.mark.parametrize("where", ["arming", "body"])
@in_loop
async def test_a_cancelled_hold_releases_once_its_body_is_done(async_url: str, where: str) -> None:
    """C69: a cancelled task stops its work, and only then the job is free; B starts after A's last write."""
    inside, done = asyncio.Event(), asyncio.Event()
    writes: list[str] = []

    async def work() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await done.wait()
            writes.append("a")

    class Slow(Ledger):
        async def arm(self, bearer: Any) -> None:
            await work()

    async with leases_at(async_url) as leases:

        async def run() -> None:
            async with leases.hold(JOB, arm=[Slow()] if where == "arming" else []):
                await work()

        holding = asyncio.create_task(run())
        await inside.wait()
        holding.cancel()
        with pytest.raises(LeaseHeld):
            await leases.acquire(JOB)
        done.set()
        with pytest.raises(asyncio.CancelledError):
            await holding
        async with leases.hold(JOB) as lease:
            writes.append("b")
        assert (lease.generation, writes) == (2, ["a", "b"])


@pytest.mark.parametrize("block", [lambda: time.sleep(0.01), lambda: sum(range(10_000))])
@in_loop
async def test_a_blocked_loop_costs_no_lease(pg_url: str, block: Callable[[], object]) -> None:
    """C66: whatever keeps the loop from running for longer than the ttl, the heartbeat's thread renews."""
    async with leases_at(pg_url, ttl=1.0, heartbeat=0.05) as leases, leases.hold(JOB) as lease:
        first = lease.lease_until
        while (lease.lease_until - first).total_seconds() < 1.5:
            block()
            assert not lease.lost.is_set()
        assert lease.token.generation == 1


# A PyDLL keeps the interpreter's lock, as a careless extension does.
GREEDY = """
import asyncio, ctypes, sys
from sinkfence import LeaseLost, aio
from sinkfence.stores.sql.aio import SqlStore
async def main():
    told = asyncio.Queue()
    loop = asyncio.get_running_loop()
    on_lost = lambda lease, error: loop.call_soon_threadsafe(told.put_nowait, lease)
    leases = aio.Leases(SqlStore(sys.argv[1]), on_lost=on_lost)
    try:
        async with leases.hold(sys.argv[2], ttl=3.0) as lease:  # of 1 s a busy machine leaves nothing
            print(lease.generation, lease.token.owner, flush=True)
            ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
            try:
                lease.token
            except LeaseLost:
                print("lost", await told.get() is lease, told.empty(), flush=True)
    except LeaseLost:
        print("left", flush=True)
    lease = await leases.acquire(sys.argv[2], wait=30)
    print("holds", lease.generation, flush=True)
    await leases.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_an_interpreter_that_stands_still_loses_its_lease_and_hears_of_it(
    pg_url: str, pg: SqlStore, child: Any, stopped: bool
) -> None:
    """C60, C66: a C call that keeps the GIL for longer than the ttl, or a stop: found out, and refused."""
    a = child(GREEDY, pg_url, JOB)
    generation, owner = a.hear().split(" ")
    if stopped:
        a.signal(signal.SIGSTOP)
    b = sinkfence.Leases(pg).acquire(JOB, wait=30)
    sink = MemoryMarks()
    sink.arm(b)
    with pytest.raises(StaleToken):
        sink.arm(Token(JOB, int(generation), owner))
    if stopped:
        a.signal(signal.SIGCONT)
    a.say("")
    assert a.hear() == "lost True True"
    assert a.hear() == "left"
    b.release()
    assert a.hear() == "holds 3"


def test_one_manager_serves_several_loops(async_url: str) -> None:
    """A loop has connections of its own: what stands at module level works in the next loop, too."""
    store = sql_aio.SqlStore(async_url)
    leases = aio.Leases(store)

    async def turn() -> int:
        async with leases.hold(JOB) as lease:
            generation = lease.generation
        await store.close()
        return generation

    assert [asyncio.run(turn()) for _ in range(3)] == [1, 2, 3]
    assert not store._engines


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
@pytest.mark.parametrize("commits", [True, False])
@in_loop
async def test_the_callers_transaction_decides(
    pg_async_url: str, pg_url: str, kind: str, commits: bool
) -> None:
    """With conn= a completion is a part of the caller's transaction, of whichever kind."""
    engine = create_async_engine(pg_async_url.partition("?")[0], poolclass=NullPool)
    async with leases_at(engine) as leases:
        lease = await leases.acquire(JOB)
        if kind == "psycopg":
            conn: Any = await psycopg.AsyncConnection.connect(pg_url)
        else:
            conn = AsyncSession(engine) if kind == "session" else await engine.connect()
        try:
            await lease.renew(conn=conn)
            await lease.complete({"rows": 17}, conn=conn)
            await (conn.commit() if commits else conn.rollback())
        finally:
            await conn.close()
        assert (await leases.get(JOB)).state == ("done" if commits else "open")


@in_loop
async def test_a_transaction_is_of_a_kind_that_is_known(lite_url: str, pg: SqlStore) -> None:
    """A synchronous connection, or something else, is refused before anything is sent."""
    async with leases_at(lite_url) as leases:
        lease = await leases.acquire(JOB)
        with pg._here().work.connect() as conn:
            for wrong in (conn, object()):
                with pytest.raises(TypeError, match="asynchronous"):
                    await lease.renew(conn=wrong)


@pytest.mark.parametrize("engine", [False, True])
@in_loop
async def test_connections_are_missed_when_they_go_silent(pg_async_url: str, engine: bool) -> None:
    """No packet comes back: found out within seconds by either driver"""
    url = pg_async_url.partition("?")[0]
    store = sql_aio.SqlStore(create_async_engine(url) if engine else url)
    await store.get(JOB)
    (made,) = store._engines.values()
    async with made.connect() as connection:
        raw = (await connection.get_raw_connection()).driver_connection
        number = raw._transport.get_extra_info("socket").fileno() if "asyncpg" in url else raw.fileno()
        with socket.socket(fileno=os.dup(number)) as way:
            assert way.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
    await store.close()


def test_the_heartbeats_own_way_is_checked() -> None:
    """Where the heartbeat could not connect as the loop does, that is said when the store is made."""
    with pytest.raises(ValueError, match="sync="):
        sql_aio.SqlStore("postgresql+asyncpg://localhost/x?ssl=require")
    sql_aio.SqlStore("postgresql+asyncpg://localhost/x?ssl=require", sync="postgresql://localhost/x")
    for url in ("mysql://localhost/x", "sqlite://"):
        with pytest.raises(ValueError, match="SqlStore"):
            sql_aio.SqlStore(url)


@in_loop
async def test_a_heartbeat_that_cannot_connect_is_told_at_the_first_call(pg_async_url: str) -> None:
    """No lease is handed out that nobody could renew."""
    store = sql_aio.SqlStore(pg_async_url, sync="postgresql://nobody@localhost:1/nowhere?connect_timeout=5")
    async with aio.Leases(store) as leases:
        with pytest.raises(Exception, match=r"(?s)connection.*failed"):
            await leases.acquire(JOB)


def shape(thing: Any) -> list[tuple[str, Any, Any]]:
    """What a call of it looks like."""
    parameters = inspect.signature(thing).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters if each.name[0] != "_"]


@pytest.mark.parametrize(
    ("ours", "twin", "apart"),
    [
        (sinkfence.Leases, aio.Leases, set()),
        (sinkfence.Lease, aio.Lease, set()),
        # What the two stores have between them and the heartbeat.
        (SqlStore, sql_aio.SqlStore, {"change", "check", "fetch", "is_checked", "renew_many"}),
    ],
)
def test_the_twins_have_the_same_names_and_parameters(ours: type, twin: type, apart: set[str]) -> None:
    """They differ by `async` alone; only an asynchronous store also says how the heartbeat connects."""
    names = {name for name in vars(ours) if not name.startswith("_")}
    assert names - apart == {name for name in vars(twin) if not name.startswith("_")}
    for name in names - apart:
        if callable(getattr(ours, name)):
            assert shape(getattr(ours, name)) == shape(getattr(twin, name)), name
            assert inspect.iscoroutinefunction(getattr(twin, name)) or name == "hold"
    assert shape(ours) == [each for each in shape(twin) if each[0] != "sync"]
