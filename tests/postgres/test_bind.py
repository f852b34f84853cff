"""Sessions and engines of which every transaction is guarded."""

from __future__ import annotations

import contextlib
import gc

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import LeaseLost, NotArmed, NotEnforced, StaleToken
from sinkfence_postgres import PostgresSink, aio, bind, transaction, watch


class Base(orm.DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    note: orm.Mapped[str]


INSERT = sa.insert(Entry)


def a_session(db, bearer, driver="psycopg"):
    """Return what writes notes by a bound sessionmaker: each in a transaction, with something in between."""
    engine = sa.create_engine(db.url(driver))
    sessions = orm.sessionmaker(engine)
    assert bind(sessions, bearer) is sessions

    def write(note, between=lambda: None):
        with sessions.begin() as session:
            session.add(Entry(note=note))
            session.flush()
            between()

    return write, engine


def an_engine(db, bearer, driver="psycopg"):
    shared = sa.create_engine(db.url(driver))
    engine = shared.execution_options()
    assert bind(engine, bearer) is engine

    def write(note, between=lambda: None):
        with engine.connect() as conn:
            conn.execute(INSERT.values(note=note))
            between()
            conn.commit()

    return write, shared


def an_async_session(db, bearer, driver="psycopg"):
    engine = sa_aio.create_async_engine(db.url(driver), poolclass=sa.NullPool)
    sessions = sa_aio.async_sessionmaker(engine)
    assert aio.bind(sessions, bearer) is sessions

    async def write(note, between):
        async with sessions() as session:
            session.add(Entry(note=note))
            await session.flush()
            between()
            await session.commit()

    return lambda note, between=lambda: None: db.run(write(note, between)), engine.sync_engine


def an_async_engine(db, bearer, driver="asyncpg"):
    engine = sa_aio.create_async_engine(db.url(driver), poolclass=sa.NullPool)
    assert aio.bind(engine, bearer) is engine

    async def write(note, between):
        async with engine.begin() as conn:
            await conn.execute(INSERT.values(note=note))
            between()

    return lambda note, between=lambda: None: db.run(write(note, between)), engine.sync_engine


BOUND = {
    "session": a_session,
    "session on psycopg2": lambda db, bearer: a_session(db, bearer, "psycopg2"),
    "engine": an_engine,
    "engine on psycopg2": lambda db, bearer: an_engine(db, bearer, "psycopg2"),
    "async session": an_async_session,
    "async session on asyncpg": lambda db, bearer: an_async_session(db, bearer, "asyncpg"),
    "async engine": an_async_engine,
}


@pytest.fixture(params=BOUND)
def bound(request, db):
    with contextlib.ExitStack() as stack:

        def make(bearer):
            write, engine = BOUND[request.param](db, bearer)
            stack.callback(engine.dispose)
            return write

        yield make


def test_every_transaction_is_guarded(db, token, holder, bound):
    """One after the other commits, until a newer owner has armed: the error says so, the bearer is told."""
    db.arm(token())
    bearer = holder(token())
    write = bound(bearer)
    write("one")
    write("two")
    with pytest.raises(StaleToken) as refused:
        write("late", lambda: db.arm(token(1)))  # at its COMMIT
    assert bearer.heard == [refused.value]
    with pytest.raises(StaleToken):
        write("later", pytest.fail)
    assert db.notes() == ["one", "two"]


def test_what_was_never_armed_is_refused(db, token, bound):
    """As by `guard`, where the transaction begins."""
    with pytest.raises(NotArmed):
        bound(token())("early", pytest.fail)
    assert db.notes() == []


def test_the_users_own_errors_pass(db, token, bound):
    """A driver's error that is no refusal arrives as it always does, and nothing was applied."""
    db.arm(token())
    write = bound(token())

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write("undone", fail)
    db.admin.execute("create unique index only_once on entry (note)")
    try:
        write("one")
        with pytest.raises(sa.exc.IntegrityError):
            write("one")
    finally:
        db.admin.execute("drop index only_once")
    assert db.notes() == ["one"]


def test_a_lease_that_is_over_begins_nothing(db, token):
    """The token is read at the beginning of each transaction."""
    db.arm(token())

    class Over:
        def __init__(self):
            self.over = False

        @property
        def token(self):
            if self.over:
                raise LeaseLost(token(), "over")
            return token()

        def lose(self, reason):
            pass

    bearer = Over()
    write, engine = a_session(db, bearer)
    write("in time")
    bearer.over = True
    with pytest.raises(LeaseLost):
        write("late")
    engine.dispose()
    assert db.notes() == ["in time"]


def test_others_of_the_same_pool_are_left_alone(db, token):
    """The engine behind a bound copy, and other sessionmakers, are not guarded and keep their errors."""
    db.arm(token())
    _, engine = an_engine(db, token())
    _, other = a_session(db, token())
    db.arm(token(1))
    for source in (engine, other):
        PostgresSink(source).arm(token(1))  # in autocommit
        with source.begin() as conn:
            conn.execute(INSERT.values(note="guarded by nobody"))
        with orm.sessionmaker(source).begin() as session:
            session.add(Entry(note="guarded by nobody"))
        with pytest.raises(sa.exc.DatabaseError), source.connect() as conn:
            guard = "select sinkfence.guard(:job_id, :generation, :owner)"
            stale = {"job_id": token().job_id, "generation": token().generation, "owner": token().owner}
            conn.execute(sa.text(guard), stale)
        source.dispose()
    assert len(db.notes()) == 4


@pytest.mark.parametrize("make", [a_session, an_engine])
def test_a_connection_that_could_not_be_had_is_the_drivers_own_affair(db, own_db, token, make):
    """With a pool that pings first, a restarted server isn't noticed; with none, its error is as ever."""
    own_db.arm(token())
    write, engine = make(own_db, token())
    write("one")
    name = own_db.dsn.rpartition("/")[2]
    end = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s and pid <> %s"
    pinging = sa.create_engine(own_db.url(), pool_pre_ping=True)
    admin, ours = db.admin, own_db.admin.info.backend_pid
    with contextlib.closing(pinging.raw_connection()):  # one to be pinged
        pass
    with contextlib.ExitStack() as stack:
        stack.callback(engine.dispose)
        stack.callback(pinging.dispose)
        for _ in range(2):
            with bind(orm.sessionmaker(pinging), token()).begin() as session:
                session.add(Entry(note="pinged"))
            admin.execute(end, (name, ours))
        admin.execute(f"alter database {name} allow_connections false")
        engine.dispose()
        for source in (engine, pinging):
            with pytest.raises(sa.exc.OperationalError):
                source.connect()
        with pytest.raises(sa.exc.OperationalError):
            write("no server", pytest.fail)
        admin.execute(f"alter database {name} allow_connections true")
    assert own_db.notes() == ["one", "pinged", "pinged"]


def test_a_lease_has_a_sessionmaker_of_its_own(db, token):
    """A second bearer on the same sessionmaker does not replace the first: both must be the newest."""
    db.arm(token())
    with db.engine() as engine:
        sessions = bind(orm.sessionmaker(engine), token())
        db.arm(token(1))
        bind(sessions, token(1))
        with pytest.raises(StaleToken), sessions.begin() as session:
            session.execute(INSERT.values(note="late"))
        with bind(orm.sessionmaker(engine), token(1)).begin() as session:
            session.execute(INSERT.values(note="new"))
    assert db.notes() == ["new"]


def test_a_copy_of_the_engine_guards_sessions_and_leaves_nothing_behind(db, token, holder):
    """A process that has one lease after another binds a copy for each, and doesn't grow."""
    db.arm(token())

    def turn(engine, bearer, between=lambda: None):
        with orm.Session(bind(engine.execution_options(), bearer)) as session, session.begin():
            session.add(Entry(note="row"))
            session.flush()
            between()

    def objects():
        gc.collect()
        return len(gc.get_objects())

    with db.engine() as engine:
        [turn(engine, token()) for _ in range(3)]
        before = objects()
        [turn(engine, token()) for _ in range(50)]
        assert objects() - before < 50
        late = holder(token())
        with pytest.raises(StaleToken):
            turn(engine, late, lambda: db.arm(token(1)))
        assert [type(error) for error in late.heard] == [StaleToken]
    assert len(db.notes()) == 53


def test_savepoints_are_part_of_the_guarded_transaction(db, token):
    """begin_nested() is guarded once, with the transaction that it is in, also where it comes first."""
    db.arm(token())
    with db.engine() as engine, bind(orm.sessionmaker(engine), token())() as session:
        with session.begin_nested():
            session.add(Entry(note="kept"))
        with contextlib.suppress(RuntimeError), session.begin_nested():
            session.add(Entry(note="undone"))
            raise RuntimeError
        assert session.scalar(sa.text("select count(*) from sinkfence.sealed")) == 1
        session.commit()
    assert db.notes() == ["kept"]


def test_transaction_on_a_bound_session(db, token):
    """`transaction` on it guards once more, and does no harm."""
    db.arm(token())
    with db.engine() as engine, bind(orm.sessionmaker(engine), token())() as session:
        with transaction(session, token()):
            session.add(Entry(note="twice guarded"))
    assert db.notes() == ["twice guarded"]


def test_each_connection_of_a_session_is_guarded(db, token):
    """A session with several engines commits each by itself: each is guarded."""
    db.arm(token())
    other = sa.create_engine(db.url(), poolclass=sa.NullPool)
    with db.engine() as one:
        sessions = bind(orm.sessionmaker(one, binds={Entry: other}), token())
        with sessions() as session:
            session.execute(sa.text("select 1"))
            session.add(Entry(note="late"))
            session.flush()
            db.arm(token(1))
            with pytest.raises(StaleToken):
                session.commit()
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_autocommit_and_two_phase_commit_are_refused(db, token, driver):
    """Where a guard would protect nothing, or too much, the transaction is refused where it begins."""
    db.arm(token())
    with db.engine(driver) as shared:
        autocommit = shared.execution_options(isolation_level="AUTOCOMMIT")
        for begin in (
            bind(autocommit.execution_options(), token()).connect,
            bind(orm.sessionmaker(autocommit), token()),
        ):
            with begin() as tx, pytest.raises(NotEnforced, match="autocommit"):
                tx.execute(INSERT.values(note="unguarded"))
        with bind(shared.execution_options(), token()).connect() as conn:
            with pytest.raises(NotEnforced, match="two-phase"):
                conn.begin_twophase()
        with bind(orm.sessionmaker(shared, twophase=True), token())() as session:
            with pytest.raises(NotEnforced, match="two-phase"):
                session.execute(INSERT.values(note="prepared"))
    assert db.notes() == []


def test_what_can_not_be_bound_is_refused(db, token):
    """A session, a connection, and the kinds of the other half."""
    with db.engine() as engine, orm.Session(engine) as session, engine.connect() as conn:
        for wrong in (session, conn, db.dsn, sa_aio.async_sessionmaker()):
            with pytest.raises(TypeError):
                bind(wrong, token())
        with pytest.raises(TypeError):
            aio.bind(engine, token())


def test_other_async_sessionmakers_are_left_alone(db, token):
    """Their sessions may be of the same class inside."""

    async def run():
        async with db.async_engine() as engine:
            aio.bind(sa_aio.async_sessionmaker(engine), token())
            async with sa_aio.async_sessionmaker(engine).begin() as session:
                session.add(Entry(note="guarded by nobody"))

    db.run(run())
    assert len(db.notes()) == 1


def test_a_door_sees_what_a_bound_session_commits(db, token):
    """Inside `translated`, as with `guard`."""
    db.arm(token())
    with watch.entered(token()) as mine, db.engine() as engine:
        with bind(orm.sessionmaker(engine), token())() as session, watch.commit():
            session.add(Entry(note="seen"))
            session.commit()
        assert mine.committed
