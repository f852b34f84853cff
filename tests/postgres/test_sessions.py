"""Sessions of SQLAlchemy whose writes could go where the guard is not, or whose commit could be none."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced, StaleToken
from sinkfence_postgres import PostgresSink, aio, guard, transaction, translated


class Base(orm.DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    note: orm.Mapped[str]


@pytest.fixture
def writes(db):
    """A second engine."""
    engine = sa.create_engine(db.url())
    yield engine
    engine.dispose()


@pytest.fixture(params=["binds", "get_bind"])
def session(request, db, writes):
    """A session that reads through one engine and writes through another."""
    with db.engine() as reads:

        class Routing(orm.Session):
            def get_bind(self, mapper=None, **options):
                return writes if self._flushing else reads

        options = {"bind": reads, "binds": {Entry: writes}} if request.param == "binds" else {}
        with (orm.Session if options else Routing)(**options) as session:
            yield session


def test_a_second_connection_in_a_block_is_refused(db, token, session):
    """A write that would go through another connection than the guarded one is refused where it is made."""
    db.arm(token())
    with pytest.raises(NotEnforced, match="more than one connection"), transaction(session, token()):
        session.add(Entry(note="unguarded"))
        session.flush()
        pytest.fail("a second connection was let in")
    with pytest.raises(NotEnforced), transaction(session, token()):
        session.add(Entry(note="unguarded"))  # flushed at COMMIT
    assert db.notes() == []


def test_a_second_connection_under_a_guard_is_refused(db, token, session, writes):
    """The same where the user commits; a refusal that is swallowed is made again in the commit."""
    db.arm(token())
    guard(session, token())
    session.add(Entry(note="unguarded"))
    with pytest.raises(NotEnforced), translated():
        session.commit()
    session.rollback()
    guard(session, token())
    with contextlib.suppress(NotEnforced):
        session.connection(bind_arguments={"bind": writes})
    session.execute(sa.text("insert into entry (note) values ('ours')"), bind_arguments={"bind": writes})
    with pytest.raises(NotEnforced):
        session.commit()
    session.rollback()
    assert db.notes() == []


def test_a_swallowed_refusal_of_a_second_connection_is_made_again(db, token, session, writes):
    """Swallowed in the block, it is there once more at the block's end."""
    db.arm(token())
    with pytest.raises(NotEnforced), transaction(session, token()):
        with contextlib.suppress(NotEnforced):
            session.connection(bind_arguments={"bind": writes})
    assert db.notes() == []


def test_a_connection_that_is_open_already_is_refused(db, token, session):
    """A guard that comes when the session has written elsewhere is refused at once."""
    db.arm(token())
    session.add(Entry(note="before"))
    session.flush()
    with pytest.raises(NotEnforced):
        guard(session, token())
    session.rollback()
    assert db.notes() == []


def test_a_session_may_have_two_connections_where_nothing_is_guarded(db, token, session):
    """The session is held to one connection for the guarded transaction alone."""
    db.arm(token())
    with transaction(session, token()):
        pass
    session.connection()
    session.add(Entry(note="guarded by nobody, and meant so"))
    session.commit()
    assert len(db.notes()) == 1


def test_a_second_connection_is_refused_asynchronously(db, token):
    """The same for an AsyncSession."""
    db.arm(token())

    async def run() -> None:
        async with db.async_engine() as reads, db.async_engine("asyncpg") as writes:
            async with sa_aio.AsyncSession(reads, binds={Entry: writes}) as session:
                async with aio.transaction(session, token()):
                    session.add(Entry(note="unguarded"))

    with pytest.raises(NotEnforced, match="more than one connection"):
        db.run(run())
    assert db.notes() == []


MODES = ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]


@pytest.mark.parametrize("mode", MODES)
def test_a_session_that_joins_an_open_transaction_is_refused(db, token, mode):
    """Its commit would be none, or that of earlier writes which nothing has guarded."""
    sink = PostgresSink(db.dsn)
    sink.arm(token())
    with db.engine() as engine, engine.connect() as conn, conn.begin(), sink.enter(token()) as watch:
        with orm.Session(conn, join_transaction_mode=mode) as session:
            with pytest.raises(NotEnforced, match="open here already"), transaction(session, token()):
                pytest.fail("entered")
        assert not watch.committed


@pytest.mark.parametrize("mode", MODES)
def test_a_joined_sessions_commit_is_not_vouched_for(db, token, mode):
    """Where the user guards such a session, what counts is the end of the transaction that it has joined."""
    sink = PostgresSink(db.dsn)
    sink.arm(token())
    with db.engine() as engine, engine.connect() as conn, sink.enter(token()) as watch:
        with conn.begin() as outer, orm.Session(conn, join_transaction_mode=mode) as session:
            guard(session, token())
            session.add(Entry(note="joined"))
            with translated():
                session.commit()
            assert watch.committed == (mode == "control_fully")
            if outer.is_active:
                with translated():
                    outer.commit()
        assert watch.committed
    assert db.notes() == ["joined"]


def test_an_async_session_that_joins_an_open_transaction_is_refused(db, token):
    """The same for an AsyncSession bound to an AsyncConnection."""
    db.arm(token())

    async def run() -> None:
        async with db.async_engine("asyncpg") as engine, engine.connect() as conn, conn.begin():
            async with sa_aio.AsyncSession(conn) as session, aio.transaction(session, token()):
                pytest.fail("entered")

    with pytest.raises(NotEnforced, match="open here already"):
        db.run(run())


def test_a_session_on_a_connection_of_its_own_is_guarded(db, token):
    """Bound to a connection on which nothing is open, a session is guarded like any other."""
    db.arm(token())
    with db.engine() as engine, engine.connect() as conn, orm.Session(conn) as session:
        with transaction(session, token()):
            session.add(Entry(note="in time"))
        with pytest.raises(StaleToken), transaction(session, token()):
            session.add(Entry(note="late"))
            db.arm(token(1))
    assert db.notes() == ["in time"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_two_phase_commit_is_refused(db, token, driver):
    """A prepared transaction would outlive its owner, and keep every successor from arming."""
    db.arm(token())
    with db.engine(driver) as engine, orm.Session(engine, twophase=True) as session:
        with pytest.raises(NotEnforced, match="two-phase"), transaction(session, token()):
            pytest.fail("entered")
    with db.engine(driver) as engine, engine.connect() as conn, conn.begin_twophase():
        with pytest.raises(NotEnforced, match="two-phase"):
            guard(conn, token())


@pytest.mark.parametrize("half", ["sync", "async"])
def test_what_ends_the_transaction_while_a_session_is_flushed_is_seen(db, token, half):
    """What a session holds back is written before the last look at its transaction."""
    db.arm(token())

    def ends(session, *_):
        session.connection().exec_driver_sql("COMMIT")
        db.arm(token(1))

    async def run():
        async with db.async_engine() as engine, sa_aio.AsyncSession(engine) as session:
            sa.event.listen(session.sync_session, "before_flush", ends)
            async with aio.transaction(session, token()):
                session.add(Entry(note="late"))

    with pytest.raises(NotEnforced, match="has ended"):
        if half == "async":
            db.run(run())
        else:
            with db.engine() as engine, orm.Session(engine) as session:
                sa.event.listen(session, "before_flush", ends)
                with transaction(session, token()):
                    session.add(Entry(note="late"))
    assert db.notes() == []
