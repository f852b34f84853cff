"""What a request's watch has seen, and what it survives."""

import contextlib
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence import SinkfenceError, StaleToken, Token
from sinkfence_postgres import aio, bind, guard, transaction, translated, watch


def test_a_response_that_is_dropped_elsewhere_leaves_the_watch_of_a_request_under_way_alone():
    """A watch that the garbage collector ends in the middle of another request takes nothing from it."""
    dropped, under_way = Token("a", 1, "one"), Token("b", 1, "two")
    abandoned = watch.entered(dropped)
    copy_context().run(abandoned.__enter__)

    with watch.entered(under_way) as mine:
        abandoned.gen.close()  # what the collector does, in whatever thread and context it happens to run
        with watch.block([under_way]) as done:
            done()
        assert mine.committed
    assert watch.over([under_way]) is None


def test_guards_do_not_pile_up(db, token):
    """One connection that is guarded over and over again is remembered once, while its transaction lasts."""
    db.arm(token())

    def work():
        with db.connect() as conn:
            for _ in range(3):
                guard(conn, token())
                conn.commit()
            assert watch.open_here() == []
            guard(conn, token())
            assert len(watch.open_here()) == 1
        assert watch.open_here() == []

    copy_context().run(work)


@pytest.fixture
def watched(db, token):
    """Guard a transaction of a session inside a watch, run a commit of one's own, and return the watch."""
    engine = sa.create_engine(db.url())
    db.arm(token())

    def watched(commit, second=lambda session: None):
        with watch.entered(token()) as mine, orm.Session(engine) as session:
            guard(session, token())
            with translated():
                commit(session)
            second(session)
            return mine.committed, mine.applied

    yield watched
    engine.dispose()


def test_a_rollback_inside_translated_is_no_commit(watched):
    """A block that swallows its error and rolls back has committed nothing, though nothing is open."""

    def fails(session):
        try:
            session.execute(sa.text("select 1/0"))
            session.commit()
        except sa.exc.DBAPIError:
            session.rollback()

    assert watched(fails) == (False, False)
    assert watched(lambda session: session.rollback()) == (False, False)


def test_a_commit_that_is_refused_and_swallowed_is_no_commit(watched):
    """The error of a COMMIT that the block keeps to itself is seen all the same."""

    def fails(session):
        session.execute(sa.text("create temp table x (x int unique deferrable initially deferred)"))
        session.execute(sa.text("insert into x values (1), (1)"))
        try:
            session.commit()
        except sa.exc.IntegrityError:
            session.rollback()

    committed, _ = watched(fails)
    assert not committed


def test_a_session_that_goes_on_reading_has_committed(watched):
    """A transaction that was seen closed stays closed, whatever its session begins next."""
    reads = lambda session: session.execute(sa.text("select 1"))  # noqa: E731
    assert watched(lambda session: session.commit(), reads) == (True, True)


def test_what_was_refused_as_a_whole_was_not_applied(db, token):
    """A refused COMMIT is remembered as such, and leaves no doubt; one before it in the same request does."""
    engine = sa.create_engine(db.url())
    db.arm(token())
    with watch.entered(token()) as mine, orm.Session(engine) as session:
        guard(session, token())
        db.arm(token(1))
        with pytest.raises(StaleToken) as refused, translated():
            session.commit()
    assert mine.refused is refused.value
    assert not mine.applied

    with watch.entered(token(1)) as mine, orm.Session(engine) as session:
        with transaction(session, token(1)):
            pass
        with pytest.raises(StaleToken) as refused, transaction(session, token(1)):
            db.arm(token(2))
    assert mine.refused is refused.value
    assert mine.applied
    engine.dispose()


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Soft])
def test_a_commit_that_a_signal_interrupts_leaves_a_doubt(db, token, kind):
    """Whether the server has applied it before psycopg asked for its end isn't known."""
    db.arm(token())

    def handler(*_):
        raise kind

    def interrupt():
        db.wait_until_blocked()  # its check inside COMMIT
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    with (
        contextlib.closing(db.connect()) as conn,
        db.connect() as other,
        ThreadPoolExecutor() as threads,
        watch.entered(token()) as mine,
    ):
        other.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(1).generation))
        with pytest.raises(kind), transaction(conn, token()):
            interrupting = threads.submit(interrupt)
        interrupting.result()
    signal.signal(signal.SIGUSR1, before)
    assert (mine.committed, mine.applied) == (False, True)


def test_a_listener_that_fails_after_the_commit_leaves_a_doubt(db, token):
    """The block ends with an error, and was committed."""
    db.arm(token())
    with db.engine() as engine, orm.Session(engine) as session, watch.entered(token()) as mine:

        @sa.event.listens_for(session, "after_commit")
        def fail(_):
            raise ValueError

        with pytest.raises(ValueError), transaction(session, token()):
            session.execute(sa.text("insert into entry (note) values ('written')"))
    assert db.notes() == ["written"]
    assert mine.applied


def test_what_a_bound_engine_refuses_at_commit_leaves_no_doubt(db, token):
    """The refusal is raised by the engine's listener, and no driver's error any more."""
    db.arm(token())
    with db.engine() as engine, watch.entered(token()) as mine:
        with bind(engine.execution_options(), token()).connect() as conn:
            with pytest.raises(StaleToken), transaction(conn, token()):
                conn.execute(sa.text("insert into entry (note) values (1)"))
                sa.event.listen(conn, "commit", lambda _: db.arm(token(1)))
        assert (mine.applied, type(mine.refused)) == (False, StaleToken)


def test_a_refused_commit_is_seen_where_an_engine_of_the_pool_was_bound_before(db, token):
    """Of the listeners to an error SQLAlchemy calls none any more after the one that raises its meaning."""
    other = token(job_id=f"{token().job_id}/other")
    db.arm(token())
    db.arm(other)
    engine = sa.create_engine(db.url())
    with bind(engine.execution_options(), other).begin():
        pass
    with watch.entered(token()) as mine, bind(orm.sessionmaker(engine), token())() as session:
        session.connection()
        db.arm(token(1))
        with translated(), contextlib.suppress(StaleToken):
            session.commit()
        session.rollback()
        assert not mine.committed
    engine.dispose()


POOLS = {
    "closed on return": {"poolclass": sa.NullPool},
    "overflow": {"pool_size": 1, "max_overflow": 1},
    "kept": {},
}

DEFERRED = "create temp table x (x int unique deferrable initially deferred) on commit drop"


@contextlib.contextmanager
def engine_of(db, driver, pool):
    """An engine whose next connection is closed, or kept, when it is returned."""
    engine = sa.create_engine(db.url(driver), **POOLS[pool])
    idle = [engine.connect() for _ in range(pool == "overflow")]
    yield engine
    for conn in idle:
        conn.close()
    engine.dispose()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("refused", [False, True])
def test_what_becomes_of_the_connection_after_its_commit_says_nothing(db, token, driver, pool, refused):
    """A COMMIT is judged by its own answer, also where its connection is closed on return to the pool."""
    db.arm(token())
    with engine_of(db, driver, pool) as engine, watch.entered(token()) as mine:
        with orm.Session(engine) as session:
            guard(session, token())
            session.execute(sa.text(DEFERRED))
            session.execute(sa.text("insert into x values (1), (:x)"), {"x": 1 if refused else 2})
            with translated():
                try:
                    session.commit()
                except sa.exc.IntegrityError:
                    session.rollback()
        assert mine.committed is not refused


def test_an_error_of_another_user_of_the_connection_says_nothing(db, token):
    """A connection that has gone on to its next user inside `translated` tells nothing of the last one."""
    db.arm(token())
    engine = sa.create_engine(db.url(), pool_size=1, max_overflow=0)
    with watch.entered(token()) as mine, orm.Session(engine) as session, contextlib.ExitStack() as stack:
        guard(session, token())
        with translated():
            session.commit()
            conn = stack.enter_context(engine.connect())
            with contextlib.suppress(sa.exc.DBAPIError):
                conn.execute(sa.text("select 1/0"))
        assert mine.committed
    engine.dispose()


def test_a_connection_of_psycopg_that_is_closed_inside_has_committed(db, token):
    """psycopg's own block commits and closes."""
    db.arm(token())
    with watch.entered(token()) as mine:
        conn = db.connect()
        guard(conn, token())
        with translated(), conn:
            pass
        assert mine.committed
    with watch.entered(token()) as mine:
        with translated(), psycopg_pool.ConnectionPool(db.dsn, min_size=1, open=True) as pool:
            with pool.connection() as conn:
                guard(conn, token())
        assert mine.committed


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("end", ["commit", "refused", "aborted", "rollback"])
def test_a_commit_is_judged_by_its_answer_asynchronously(db, token, driver, end):
    """With asyncpg too a COMMIT that was refused, or has rolled back, is none, though the block goes on."""
    db.arm(token())

    async def work(session):
        await aio.guard(session, token())
        await session.execute(sa.text(DEFERRED))
        await session.execute(sa.text(f"insert into x values (1), ({1 if end == 'refused' else 2})"))
        async with aio.translated():
            try:
                if end == "aborted":
                    with contextlib.suppress(sa.exc.DBAPIError):
                        await session.execute(sa.text("select 1/0"))
                await (session.rollback() if end == "rollback" else session.commit())
            except sa.exc.IntegrityError:
                await session.rollback()

    async def run():
        with watch.entered(token()) as mine:
            async with db.async_engine(driver) as engine, sa_aio.AsyncSession(engine) as session:
                if end == "aborted":
                    with pytest.raises(SinkfenceError, match="was rolled back"):
                        await work(session)
                else:
                    await work(session)
            return mine.committed

    assert db.run(run()) is (end == "commit")


@pytest.mark.parametrize("kind", ["psycopg", "session", "block"])
def test_a_guard_that_is_made_inside_translated_counts(db, token, kind):
    """The transaction may begin and end inside."""
    db.arm(token())
    with watch.entered(token()) as mine, db.engine() as engine:
        if kind == "psycopg":
            with db.connect() as conn, translated():
                guard(conn, token())
                conn.commit()
        elif kind == "session":
            with translated(), orm.Session(engine) as session, session.begin():
                guard(session, token())
        else:
            with translated(), engine.connect() as conn:
                guard(conn, token())
                conn.commit()
        assert mine.committed


def test_what_was_mended_inside_translated_is_a_success(db, token):
    """Whether a COMMIT is one is known when it is sent, and not at the beginning of the block."""
    db.arm(token())
    with watch.entered(token()) as mine, db.engine() as engine, orm.Session(engine) as session:
        guard(session, token())
        session.execute(sa.text("insert into entry (note) values ('mended')"))
        savepoint = session.begin_nested()
        with pytest.raises(sa.exc.DBAPIError):
            session.execute(sa.text("select 1/0"))
        with translated():
            savepoint.rollback()
            session.commit()
        assert mine.committed
    assert db.notes() == ["mended"]


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_one_that_has_failed_and_is_rolled_back_does_not_speak_for_another(db, token, kind):
    """To tidy up one transaction and commit another is a success."""
    db.arm(token())
    with contextlib.ExitStack() as stack:
        if kind == "psycopg":
            failed, fine = (stack.enter_context(db.connect()) for _ in range(2))
            sql = str
        else:
            engine = stack.enter_context(db.engine())
            failed, fine = (stack.enter_context(orm.Session(engine)) for _ in range(2))
            sql = sa.text
        mine = stack.enter_context(watch.entered(token()))
        guard(failed, token())
        with pytest.raises((psycopg.Error, sa.exc.DBAPIError)):
            failed.execute(sql("select 1/0"))
        guard(fine, token())
        fine.execute(sql("insert into entry (note) values ('fine')"))
        with translated():
            failed.rollback()
            fine.commit()
        assert mine.committed
    assert db.notes() == ["fine"]


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_guarded_connection_that_is_dropped_goes_back_to_its_pool(db, token, kind):
    """The guard keeps nothing from the garbage collector, inside a request and elsewhere."""
    db.arm(token())
    engine = sa.create_engine(db.url(), pool_size=1, max_overflow=0, pool_timeout=1)
    for entered in (contextlib.nullcontext(), watch.entered(token())):
        with entered as mine:
            for _ in range(2):
                tx = engine.connect() if kind == "connection" else orm.Session(engine)
                guard(tx, token())
                del tx
                gc.collect()
            assert mine is None or not mine.committed
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_a_guarded_connection_of_psycopg_that_is_dropped_has_not_committed(db, token):
    """Nothing is known of it but that it is gone."""
    db.arm(token())
    with watch.entered(token()) as mine:
        conn = db.connect()
        guard(conn, token())
        guarded = [conn]
        del conn
        with translated(), pytest.warns(ResourceWarning):
            guarded.clear()
        assert not mine.committed


def test_a_refusal_inside_another_block_arrives_as_what_it_is(db, token):
    """The block that is under way around it is not taken for what was refused."""
    db.arm(token())
    with watch.entered(token()) as mine, db.engine() as engine:
        with orm.Session(engine) as outer, orm.Session(engine) as inner:
            with pytest.raises(StaleToken), transaction(outer, token()):
                db.arm(token(1))
                with translated(), transaction(inner, token()):
                    pytest.fail("begun")
        assert not mine.applied
