"""The sink as an object: its sources, the gate of a service's door, and its asynchronous twin."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_aio

import sinkfence_postgres
from sinkfence.errors import GenerationConflict, SinkfenceError, StaleToken
from sinkfence.sinks import AsyncGate, AsyncSink, Gate, Sink
from sinkfence_postgres import PostgresSink, aio, guard, transaction, translated


@pytest.fixture(
    params=["dsn", "conninfo", "pool", "engine", "psycopg2", "aio dsn", "aio pool", "aio engine", "asyncpg"]
)
def arm(request, db):
    """`arm(bearer)` from each kind of source."""
    kind = request.param

    async def asynchronous(bearer):
        if kind == "aio dsn":
            await aio.PostgresSink(db.dsn).arm(bearer)
        elif kind == "aio pool":
            async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1, open=False) as pool:
                await aio.PostgresSink(pool).arm(bearer)
                async with pool.connection() as conn:
                    assert not conn.autocommit
        else:
            engine = sa_aio.create_async_engine(db.url("asyncpg" if kind == "asyncpg" else "psycopg"))
            try:
                await aio.PostgresSink(engine).arm(bearer)
            finally:
                await engine.dispose()

    def synchronous(bearer):
        if kind == "pool":
            with psycopg_pool.ConnectionPool(db.dsn, min_size=1, open=True) as pool:
                PostgresSink(pool).arm(bearer)
                with pool.connection() as conn:
                    assert not conn.autocommit  # given back as it was taken
        elif kind in ("engine", "psycopg2"):
            engine = sa.create_engine(db.url("psycopg" if kind == "engine" else kind))
            try:
                PostgresSink(engine).arm(bearer)
                with engine.connect() as conn:
                    assert not conn.connection.dbapi_connection.autocommit
            finally:
                engine.dispose()
        else:
            dsn = db.dsn if kind == "dsn" else psycopg.conninfo.make_conninfo(db.dsn, application_name="x")
            PostgresSink(dsn).arm(bearer)

    return (lambda bearer: asyncio.run(asynchronous(bearer))) if "a" in kind[:2] else synchronous


def test_arming_raises_the_mark_and_tells_the_stale(db, token, holder, arm):
    """From every source: the mark is raised, an equal arm is harmless, lower and foreign ones are told."""
    arm(token(1))
    arm(token(1))
    assert db.mark(token().job_id) == (token(1).generation, token(1).owner)
    stale, foreign = holder(token()), holder(token(1, owner="another"))
    with pytest.raises(StaleToken) as lower:
        arm(stale)
    with pytest.raises(GenerationConflict) as equal:
        arm(foreign)
    assert (stale.heard, foreign.heard) == ([lower.value], [equal.value])
    assert lower.value.mark == token(1).generation
    assert db.mark(token().job_id) == (token(1).generation, token(1).owner)


END_IDLE = (
    "select count(pg_terminate_backend(pid, 20000)) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)
"""Ends the sessions of a database, as a failover does, and waits until they are gone."""


@pytest.mark.parametrize("kind", ["pool", "psycopg", "psycopg2"])
@pytest.mark.parametrize("evict", [False, True])
def test_a_connection_that_died_in_its_pool_is_replaced(own_db, token, kind, evict):
    """Arming and checking take a new connection where those in the pool were ended by the server."""
    if kind == "pool":
        pool = psycopg_pool.ConnectionPool(own_db.dsn, min_size=3, open=True)
        pool.wait()
    else:
        pool = sa.create_engine(own_db.url(kind))
        conns = [pool.connect() for _ in range(3)]
        [conn.close() for conn in conns]
    try:
        sink = PostgresSink(pool)
        assert own_db.admin.execute(END_IDLE).fetchone() == (3,)
        sink.arm(token(), evict=evict)
        assert own_db.mark(token().job_id) == (token().generation, token().owner)
        own_db.admin.execute(END_IDLE)
        sink.check(token())
    finally:
        pool.close() if kind == "pool" else pool.dispose()


@pytest.mark.parametrize("kind", ["pool", "psycopg", "asyncpg"])
def test_an_asynchronous_connection_that_died_in_its_pool_is_replaced(own_db, token, kind):
    """So does the asynchronous sink."""

    async def trial():
        if kind == "pool":
            pool = psycopg_pool.AsyncConnectionPool(own_db.dsn, min_size=3, open=False)
            await pool.open(wait=True)
        else:
            pool = sa_aio.create_async_engine(own_db.url(kind))
            conns = [await pool.connect() for _ in range(3)]
            [await conn.close() for conn in conns]
        try:
            sink = aio.PostgresSink(pool)
            assert own_db.admin.execute(END_IDLE).fetchone() == (3,)
            await sink.arm(token())
            assert own_db.mark(token().job_id) == (token().generation, token().owner)
            own_db.admin.execute(END_IDLE)
            await sink.check(token())
        finally:
            await (pool.close() if kind == "pool" else pool.dispose())

    asyncio.run(trial())


READ_ONLY = "set default_transaction_read_only = on"
"""What a session is told by a server that is the primary no longer."""


@pytest.mark.parametrize("kind", ["pool", "psycopg", "psycopg2"])
def test_connections_to_a_demoted_server_are_replaced(own_db, token, kind):
    """Arming takes a new connection where those of the pool may only read, and none is left there."""
    if kind == "pool":
        pool = psycopg_pool.ConnectionPool(own_db.dsn, min_size=3, max_size=3, open=True, timeout=30)
        pool.wait()
        conns = [pool.getconn() for _ in range(3)]
        for conn in conns:
            conn.execute(READ_ONLY)
            conn.commit()
            pool.putconn(conn)
    else:
        pool = sa.create_engine(own_db.url(kind))
        conns = [pool.connect() for _ in range(3)]
        for conn in conns:
            conn.exec_driver_sql(READ_ONLY)
            conn.commit()
        [conn.close() for conn in conns]
    try:
        sink = PostgresSink(pool)
        sink.arm(token())
        assert own_db.mark(token().job_id) == (token().generation, token().owner)
        for _ in range(3):
            with sink.begin(token()):
                pass
    finally:
        pool.close() if kind == "pool" else pool.dispose()


@pytest.mark.parametrize("kind", ["pool", "psycopg", "asyncpg"])
def test_asynchronous_connections_to_a_demoted_server_are_replaced(own_db, token, kind):
    """So does the asynchronous sink."""

    async def trial():
        if kind == "pool":
            pool = psycopg_pool.AsyncConnectionPool(
                own_db.dsn, min_size=3, max_size=3, open=False, timeout=30
            )
            await pool.open(wait=True)
            conns = [await pool.getconn() for _ in range(3)]
            for conn in conns:
                await conn.execute(READ_ONLY)
                await conn.commit()
                await pool.putconn(conn)
        else:
            pool = sa_aio.create_async_engine(own_db.url(kind))
            conns = [await pool.connect() for _ in range(3)]
            for conn in conns:
                await conn.exec_driver_sql(READ_ONLY)
                await conn.commit()
            [await conn.close() for conn in conns]
        try:
            sink = aio.PostgresSink(pool)
            await sink.arm(token())
            assert own_db.mark(token().job_id) == (token().generation, token().owner)
            for _ in range(3):
                async with sink.begin(token()):
                    pass
        finally:
            await (pool.close() if kind == "pool" else pool.dispose())

    asyncio.run(trial())


def test_a_server_that_refuses_is_asked_once(own_db, token):
    """What is no dead connection is not sent again, and a dead one not for a third time."""
    sent = []
    with own_db.engine() as engine:
        sink = PostgresSink(engine)

        @sa.event.listens_for(engine, "before_cursor_execute")
        def ended(conn, cursor, statement, *_):
            sent.append(statement)
            pid = conn.connection.driver_connection.info.backend_pid
            own_db.admin.execute("select pg_terminate_backend(%s, 20000)", (pid,))

        with pytest.raises(sa.exc.OperationalError):
            sink.arm(token())
        assert len(sent) == 2
        sa.event.remove(engine, "before_cursor_execute", ended)
        sink.arm(token(1))
        sa.event.listen(engine, "after_cursor_execute", lambda *_: sent.append("after"))
        sa.event.listen(engine, "handle_error", lambda _: sent.append("error"))
        with pytest.raises(StaleToken):
            sink.arm(token())
        assert sent[2:] == ["error"]


def test_wrong_sources_and_connections_are_type_errors(db, token):
    """What can't work is told before anything is sent, with the way that does."""
    engine, async_engine = sa.create_engine(db.url()), sa_aio.create_async_engine(db.url())
    with pytest.raises(TypeError, match=r"sinkfence_postgres\.aio"):
        PostgresSink(async_engine)
    with pytest.raises(TypeError, match="AsyncEngine"):
        aio.PostgresSink(engine)
    with pytest.raises(TypeError, match="create_engine"):
        PostgresSink(db.url())
    with pytest.raises(TypeError, match=r"psycopg\.Connection"):
        guard(engine, token())
    with (
        pytest.raises(TypeError, match=r"sinkfence_postgres\.aio"),
        transaction(async_engine.connect(), token()),
    ):
        pass
    with db.connect() as conn, pytest.raises(TypeError, match="AsyncConnection"):
        asyncio.run(aio.guard(conn, token()))


def test_another_driver_is_a_type_error(token):
    """A driver whose errors aren't read is named at once, by the sink and wherever a connection is given."""
    with sa.create_engine("sqlite://").connect() as conn:
        for call in (
            lambda: PostgresSink(conn.engine),
            lambda: guard(conn, token()),
            lambda: transaction(conn, token()).__enter__(),
            lambda: sinkfence_postgres.once(conn, token(), "step", list),
            lambda: sinkfence_postgres.install(conn),
            lambda: sinkfence_postgres.bind(conn.engine.execution_options(), token()).connect().begin(),
        ):
            with pytest.raises(TypeError, match=r"sqlite\+pysqlite is not supported here: use postgresql"):
                call()
            conn.rollback()


def test_the_twins_have_the_same_names_and_parameters():
    """sinkfence_postgres and sinkfence_postgres.aio differ by `async` alone."""
    assert set(sinkfence_postgres.__all__) == set(aio.__all__)

    def shape(thing):
        return [(p.name, p.kind, p.default) for p in inspect.signature(thing).parameters.values()]

    for name in aio.__all__:
        assert shape(getattr(sinkfence_postgres, name)) == shape(getattr(aio, name)), name
    methods = {name for name in vars(PostgresSink) if not name.startswith("_")}
    assert methods == {name for name in vars(aio.PostgresSink) if not name.startswith("_")}
    for name in methods - {"durable"}:
        assert shape(getattr(PostgresSink, name)) == shape(getattr(aio.PostgresSink, name)), name


def test_the_sinks_meet_the_protocols(db):
    """A type checker agrees that they are a Sink and a Gate; here that every member is there."""
    for kind, protocols in ((PostgresSink, (Sink, Gate)), (aio.PostgresSink, (AsyncSink, AsyncGate))):
        for protocol in protocols:
            for name in (name for name in vars(protocol) if not name.startswith("_")):
                assert hasattr(kind(db.dsn), name)


def test_announcing_is_arming_by_a_door(db, token):
    """A newer token raises the mark at the door; an equal one passes; older and foreign ones are refused."""
    sink = PostgresSink(db.dsn)
    sink.announce(token())
    sink.announce(token(1))
    sink.announce(token(1))
    assert db.mark(token().job_id) == (token(1).generation, token(1).owner)
    with pytest.raises(StaleToken):
        sink.announce(token())
    with pytest.raises(GenerationConflict):
        asyncio.run(aio.PostgresSink(db.dsn).announce(token(1, owner="another")))


def test_a_look_at_the_door_takes_no_lock_and_no_transaction_id(db, token):
    """Announcing a known owner while a raise is under way does not wait for it."""
    db.arm(token())
    with db.connect() as raising:
        raising.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(1).generation))
        PostgresSink(db.dsn).announce(token())
        raising.rollback()


def test_committed_is_true_after_a_commit_of_this_token(db, token):
    """The gate vouches for what was guarded with the request's token inside `enter`, and for nothing else."""
    sink, other = PostgresSink(db.dsn), token(job_id="another job")
    db.arm(token())
    db.arm(other)
    with sink.enter(token()) as watch, db.connect() as conn:
        assert not watch.committed
        with transaction(conn, other):
            pass
        assert not watch.committed
        with transaction(conn, token()):
            assert not watch.committed
        assert watch.committed
        with transaction(conn, token()):
            assert not watch.committed


def test_what_was_not_committed_is_not_vouched_for(db, token):
    """A refused commit, a failed block, a rollback and a guard of which nothing was heard are not commits."""
    sink = PostgresSink(db.dsn)
    db.arm(token())
    with sink.enter(token()) as watch, db.connect() as conn:
        with pytest.raises(ZeroDivisionError), transaction(conn, token()):
            _ = 1 / 0
        with transaction(conn, token()):
            raise psycopg.Rollback
        guard(conn, token())
        conn.rollback()
        with translated():
            conn.commit()
        guard(conn, token())
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("select 1/0")
        with pytest.raises(SinkfenceError, match="was rolled back"), translated():
            conn.commit()  # "succeeds", as a ROLLBACK
        guard(conn, token())
        conn.commit()  # it may have been this or anything else
        assert not watch.committed
        with pytest.raises(StaleToken), transaction(conn, token()):
            db.arm(token(1))
        assert not watch.committed


def test_a_guard_is_vouched_for_once_its_commit_was_seen(db, token):
    """guard() and a commit inside translated(); another guard that is still open takes the word back."""
    sink = PostgresSink(db.dsn)
    db.arm(token())
    engine = sa.create_engine(db.url())
    with sink.enter(token()) as watch, sa.orm.Session(engine) as session, db.connect() as conn:
        guard(session, token())
        assert not watch.committed
        with translated():
            session.commit()
        assert watch.committed
        guard(conn, token())
        assert not watch.committed
        with translated():
            conn.commit()
        assert watch.committed
    engine.dispose()


def test_an_asynchronous_door_before_synchronous_handlers(db, token):
    """A handler in a thread with a copied context is seen by the door in its own context."""
    sink = aio.PostgresSink(db.dsn)

    def handler() -> None:
        with db.connect() as conn, transaction(conn, token()):
            pass

    async def request() -> tuple[bool, bool]:
        await sink.announce(token())
        async with sink.enter(token()) as watch:
            before = watch.committed
            with ThreadPoolExecutor() as threads:
                await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, handler)
            return before, watch.committed

    assert asyncio.run(request()) == (False, True)


def test_requests_do_not_see_each_other(db, token):
    """Two requests at once: the commit of one is no commit of the other."""
    sink = aio.PostgresSink(db.dsn)
    db.arm(token())

    async def request(commits: bool, met: asyncio.Barrier) -> bool:
        async with sink.enter(token()) as watch:
            if commits:
                async with sink.begin(token()):
                    pass
            await met.wait()
            return watch.committed

    async def both() -> list[bool]:
        met = asyncio.Barrier(2)
        return await asyncio.gather(request(True, met), request(False, met))

    assert asyncio.run(both()) == [True, False]


def test_importing_takes_no_driver():
    """The package imports neither psycopg nor SQLAlchemy: each user has the one that they use."""
    code = "import sys, sinkfence_postgres.aio; print(*{'psycopg', 'sqlalchemy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("sink", [PostgresSink, aio.PostgresSink])
def test_a_connection_string_without_psycopg_says_what_to_install(monkeypatch, sink):
    """Where psycopg isn't installed, a connection string is refused at once, with the command that helps."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'sinkfence\[postgres\]'"):
        sink("host=nowhere")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgres//me:s3cret@db.example/app",
        "postgresql://me:p@s3cret@db.example/app",
        "postgresql://me:p/s3cret@db.example/app",
        "postgresql://me:%s3cret@db.example/app",
        "postgresql://me:p@db.example:s3cret/app",
        "postgresql://me@db.example/app?s3cret=1",
        "host=db.example password=a s3cret",
        "host=db.example passwort=s3cret",
        "host=db.example password='s3cret",
    ],
)
@pytest.mark.parametrize("sink", [PostgresSink, aio.PostgresSink])
def test_a_mistyped_connection_string_is_not_shown(sink, dsn):
    """What libpq can't make sense of may be part of a password: it is refused at once, and not repeated."""
    with pytest.raises(ValueError, match="no connection string of libpq") as caught:
        sink(dsn)
    assert "s3cret" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "dsn", ["", "host=@abstract", "postgresql:///app", "postgresql://me:p%40ss@a:1,b:2/app", "port=1"]
)
def test_a_connection_string_may_be_any_of_libpqs(dsn):
    """Nothing that libpq takes is refused."""
    PostgresSink(dsn)
