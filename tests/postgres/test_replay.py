"""Answers kept in the database: on every source of connections, sync and async."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from sinkfence import IdempotencyMismatch, NotArmed, StaleToken, Token
from sinkfence_postgres import PostgresSink, aio, clean_ledger, install, once

HELD = (
    "from pg_locks where locktype = 'advisory' and database ="
    " (select oid from pg_database where datname = current_database())"
)
LOCKS = f"select count(*) {HELD}"
NUMBERS = itertools.count(1)
JOB = ""


@pytest.fixture(autouse=True)
def job() -> None:
    """A job that no other test uses."""
    globals()["JOB"] = f"invoice-{next(NUMBERS)}"


def token(generation: int = 7, owner: str = "a") -> Token:
    return Token(JOB, generation, owner)


@pytest.fixture(scope="module")
def dsn(postgres_server) -> Iterator[str]:
    database = postgres_server.create_database()
    with psycopg.connect(database) as conn:
        install(conn)
    yield database
    postgres_server.drop_database(database)


@pytest.fixture
def db(dsn) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(params=["string", "pool", "psycopg", "psycopg2"])
def sink(request, db, dsn) -> Iterator[PostgresSink]:
    """A sink whose pool has one connection only."""
    if request.param == "string":
        yield PostgresSink(dsn)
    elif request.param == "pool":
        with ConnectionPool(dsn, min_size=1, max_size=1, open=True) as pool:
            yield PostgresSink(pool)
    else:
        url = dsn.replace("postgresql://", f"postgresql+{request.param}://", 1)
        engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5)
        yield PostgresSink(engine)
        assert engine.pool.checkedout() == 0
        engine.dispose()


def test_an_answer_is_found_again(sink, db):
    """Kept, it is there at once, for this owner and for the next; and the pool's one connection is free."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as claim:
        assert claim.state == "run"
        with sink.begin(token()):  # the handler gets the connection that there is
            pass
        with replay.claim(token(), "k", "f") as other:
            assert other.state == "in-progress"
        claim.keep('["é", "\\u0000"]')
        with replay.claim(token(), "k", "f") as again:
            assert (again.state, again.answer) == ("answered", '["é", "\\u0000"]')
    sink.arm(token(8))
    with replay.claim(token(8), "k", "f") as again:
        assert again.state == "answered"
    with replay.claim(token(8), "k", "g") as again:
        assert (again.state, again.answer) == ("reused", None)
    with replay.claim(token(8), "k2", "g") as again:
        assert again.state == "run"
    assert db.execute(LOCKS).fetchone() == (0,)


def test_a_stale_owner_is_told_nothing(sink):
    """The fence comes before the record."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as claim:
        claim.keep("answer")
    sink.arm(token(8))
    with pytest.raises(StaleToken), replay.claim(token(), "k", "f"):
        pass
    with pytest.raises(NotArmed), replay.claim(token(9), "k", "f"):
        pass


def test_a_superseded_attempt_keeps_nothing(sink):
    """7 is inside, 8 takes over at once and answers; what 7 would keep is refused."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as old:
        sink.arm(token(8))
        with replay.claim(token(8), "k", "f") as new:
            assert new.state == "run"
            with pytest.raises(StaleToken):
                old.keep("of 7")
            new.keep("of 8")
    with replay.claim(token(8), "k", "f") as again:
        assert again.answer == "of 8"


def test_an_unknown_outcome_is_one_until_a_newer_owner_knows(sink):
    """Nothing of its own generation runs; the next one runs it, and keeps an answer, which stays."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as claim:
        claim.leave(undone=False)
    with replay.claim(token(), "k", "f") as again:
        assert (again.state, again.answer) == ("unknown", None)
    with replay.claim(token(), "k", "g") as other:
        assert other.state == "reused"
    for generation in (8, 9):
        sink.arm(token(generation))
        with replay.claim(token(generation), "k", "f") as newer:
            assert newer.state == "run"
            with replay.claim(token(generation), "k", "f") as again:
                assert again.state == "in-progress"
            newer.leave(undone=False)
        with replay.claim(token(generation), "k", "f") as again:
            assert again.state == "unknown"
    sink.arm(token(10))
    with replay.claim(token(10), "k", "f") as newer:
        newer.keep("of 10")
    sink.arm(token(11))
    with replay.claim(token(11), "k", "f") as again:
        assert (again.state, again.answer) == ("answered", "of 10")


def test_a_superseded_attempt_leaves_nothing(sink):
    """8 runs what 7 has left unknown: what 7 says after that is refused."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as old:
        sink.arm(token(8))
        with replay.claim(token(8), "k", "f") as new:
            with pytest.raises(StaleToken):
                old.leave(undone=False)
            new.leave(undone=False)
    with replay.claim(token(8), "k", "f") as again:
        assert again.state == "unknown"


def test_an_attempt_that_has_done_nothing_is_run_again(sink):
    """Whether it is left by word, by an exception or by the end of its connection."""
    replay = sink.replay()
    sink.arm(token())
    with replay.claim(token(), "k", "f") as claim:
        claim.leave(undone=True)
        with replay.claim(token(), "k", "f") as again:
            assert again.state == "run"
    with pytest.raises(KeyError), replay.claim(token(), "k", "f"):
        raise KeyError
    with replay.claim(token(), "k", "f") as again:
        assert again.state == "run"


def test_a_connection_that_was_lost_keeps_nothing(sink, db):
    """Its lock is gone: another attempt runs. What the first would keep raises, and the second's is kept."""
    replay = sink.replay()
    sink.arm(token())
    with pytest.raises(Exception, match=r"terminat|closed|lost"), replay.claim(token(), "k", "f") as first:
        db.execute(f"select pg_terminate_backend(pid) {HELD}")
        while db.execute(LOCKS).fetchone() != (0,):
            pass
        with replay.claim(token(), "k", "f") as second:
            assert second.state == "run"
            second.keep("of the second")
        first.keep("of the first")
    with replay.claim(token(), "k", "f") as again:
        assert again.answer == "of the second"


def test_a_step_that_was_committed_knows_what_was_asked(sink, db):
    """Of an attempt that was killed before it kept an answer, another body under its key gets no result.

    The same body does. A step that isn't the request's own is the same step for all of them.
    """
    done: list[str] = []

    def pay(fingerprint: str, step: str = "pay k", generation: int = 7, key: str = "k") -> object:
        own = token(generation)
        with sink.enter(own), sink.replay().claim(own, key, fingerprint) as claim:
            assert claim.state == "run"
            with sink.begin(own) as conn:
                return once(conn, own, step, lambda: done.append(fingerprint) or len(done))

    sink.arm(token())
    assert pay("f") == pay("f") == 1
    with pytest.raises(IdempotencyMismatch, match="asked for something else"):
        pay("g")
    sink.arm(token(8))
    with pytest.raises(IdempotencyMismatch, match="asked for something else"):
        pay("g", generation=8)
    assert pay("f", generation=8) == 1
    with sink.begin(token(8)) as conn:
        assert once(conn, token(8), "pay k", lambda: done.append("outside")) == 1
    assert pay("f", step="close the month", generation=8) == 2
    assert pay("g", step="close the month", generation=8, key="k2") == 2
    assert done == ["f", "f"]


def test_answers_are_cleaned_with_the_ledger(sink, db):
    """They are its entries, under 'http:' and the job."""
    sink.arm(token())
    with sink.replay().claim(token(), "k", "f") as claim:
        claim.keep("answer")
    entry = "select generation from sinkfence.ledger where scope = %s"
    assert db.execute(entry, [f"http:{JOB}"]).fetchall() == [(7,)]
    assert clean_ledger(db, datetime.timedelta(microseconds=1)) > 0
    assert db.execute(entry, [f"http:{JOB}"]).fetchall() == []


@pytest.fixture(params=["string", "pool", "psycopg", "asyncpg"])
def source(request) -> str:
    return request.param


def test_the_same_for_an_event_loop(source, db, dsn):
    """Found, refused, superseded and left as in the sync half, on each asynchronous source."""

    async def scene(sink: Any) -> None:
        replay = sink.replay()
        await sink.arm(token())
        await sink.check(token())
        async with replay.claim(token(), "k", "f") as claim:
            assert claim.state == "run"
            async with sink.begin(token()):
                pass
            async with replay.claim(token(), "k", "f") as other:
                assert other.state == "in-progress"
            await claim.keep("answer")
            async with replay.claim(token(), "k", "f") as again:
                assert (again.state, again.answer) == ("answered", "answer")
        async with replay.claim(token(), "k2", "f") as claim:
            await claim.leave(undone=True)
            async with replay.claim(token(), "k2", "f") as again:
                assert again.state == "run"
        async with replay.claim(token(), "k4", "f") as claim:
            await claim.leave(undone=False)
        async with replay.claim(token(), "k4", "f") as again:
            assert again.state == "unknown"
        async with replay.claim(token(), "k2", "f") as old:
            await sink.arm(token(8))
            async with replay.claim(token(8), "k2", "f") as new:
                with pytest.raises(StaleToken):
                    await old.keep("of 7")
                await new.keep("of 8")
        with pytest.raises(StaleToken):
            async with replay.claim(token(), "k", "f"):
                pass
        inside = asyncio.Event()

        async def request() -> None:
            async with replay.claim(token(8), "k3", "f"):
                inside.set()
                await asyncio.sleep(60)

        async def pay(fingerprint: str) -> object:
            async with sink.enter(token(8)), replay.claim(token(8), "k5", fingerprint):
                async with sink.begin(token(8)) as conn:
                    return await aio.once(conn, token(8), "pay k5", lambda: asyncio.sleep(0, fingerprint))

        assert await pay("f") == await pay("f") == "f"
        with pytest.raises(IdempotencyMismatch, match="asked for something else"):
            await pay("g")
        task = asyncio.create_task(request())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        while True:
            async with replay.claim(token(8), "k3", "f") as again:
                if again.state == "run":  # the server has noticed that its client has gone
                    break

    async def main() -> None:
        if source == "string":
            await scene(aio.PostgresSink(dsn))
        elif source == "pool":
            async with AsyncConnectionPool(dsn, min_size=1, max_size=1, open=False) as pool:
                await scene(aio.PostgresSink(pool))
        else:
            url = dsn.replace("postgresql://", f"postgresql+{source}://", 1)
            engine = create_async_engine(url, pool_size=1, max_overflow=0, pool_timeout=5)
            await scene(aio.PostgresSink(engine))
            await engine.dispose()

    asyncio.run(main())


def test_checking_raises_no_mark(sink, db):
    """Unknown and newer owners are NotArmed, older ones stale, and nothing is written."""
    with pytest.raises(NotArmed):
        sink.check(token())
    assert db.execute("select count(*) from sinkfence.mark where job_id = %s", [JOB]).fetchone() == (0,)
    sink.arm(token())
    sink.check(token())
    with pytest.raises(NotArmed):
        sink.check(token(8))
    with pytest.raises(StaleToken):
        sink.check(token(6))


def test_a_writer_needs_no_more_than_its_role(db, dsn):
    """sinkfence_writer may claim, keep and check; nobody else."""
    db.execute("create role replayer login password 'x' in role sinkfence_writer")
    db.execute("create role stranger login password 'x'")
    try:
        sink = PostgresSink(login(dsn, "replayer"))
        sink.arm(token())
        sink.check(token())
        with sink.replay().claim(token(), "k", "f") as claim:
            claim.keep("answer")
        with sink.replay().claim(token(), "k", "f") as again:
            assert again.answer == "answer"
        with psycopg.connect(login(dsn, "stranger"), autocommit=True) as stranger:
            for call in ("recognise('j', 1, 'a')", "claim('j', 1, 'a', 'k')"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    stranger.execute(f"select sinkfence.{call}")
    finally:
        db.execute("drop role replayer; drop role stranger")


def login(dsn: str, role: str) -> str:
    return make_conninfo(**{**conninfo_to_dict(dsn), "user": role, "password": "x"})


def test_a_database_that_ends_idle_transactions_leaves_the_lock(dsn, db):
    """Its time limits are not for a claim: the handler may take longer, and a repetition is in progress."""
    limits = ["idle_in_transaction_session_timeout"]
    if db.info.server_version >= 170000:
        limits.append("transaction_timeout")
    options = " ".join(f"-c {limit}=300" for limit in limits)
    sink = PostgresSink(make_conninfo(dsn, options=options))
    sink.announce(token())
    replay = sink.replay()
    with replay.claim(token(), "k", "f") as first:
        assert first.state == "run"
        db.execute("select pg_sleep(0.6)")  # twice what they allow
        with replay.claim(token(), "k", "f") as again:
            assert again.state == "in-progress"
        first.keep("done")
    with replay.claim(token(), "k", "f") as last:
        assert (last.state, last.answer) == ("answered", "done")
