"""What is bound writes nothing after a refusal where its transaction begins, until it is rolled back."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import LeaseLost, NotArmed, NotEnforced, StaleToken
from sinkfence_postgres import aio, bind, guard

INSERT = sa.text("insert into entry (note) values (:note)")
NOTHING = contextlib.nullcontext()
ROLLED_BACK_FIRST = pytest.raises(sa.exc.PendingRollbackError)


class Lease:
    """A bearer whose term can end."""

    def __init__(self, token):
        self._token = token
        self.over = False

    @property
    def token(self):
        if self.over:
            raise LeaseLost(self._token, "over")
        return self._token

    def lose(self, reason):
        pass


@pytest.fixture
def lease(db, token):
    db.arm(token())
    return Lease(token())


def a_session(engine, lease, **options):
    return bind(orm.sessionmaker(engine, **options), lease)()


def an_engine(engine, lease):
    return bind(engine.execution_options(), lease).connect()


BEGUN = {
    "session": a_session,
    "session on a connection": lambda engine, lease: a_session(engine.connect(), lease),
    "engine": an_engine,
}


def failing(*_):
    raise RuntimeError


def write(tx, note):
    tx.execute(INSERT, {"note": note})


def write_nested(tx, note):
    with tx.begin_nested():
        write(tx, note)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("writes", [write, write_nested])
@pytest.mark.parametrize("begin", BEGUN.values(), ids=BEGUN)
def test_a_lease_that_is_over_writes_nothing_by_trying_again(db, lease, begin, writes, driver):
    """Its second statement and its commit say that it must roll back; after that, each is guarded anew."""
    with db.engine(driver) as engine, begin(engine, lease) as tx:
        lease.over = True
        with pytest.raises(LeaseLost):
            writes(tx, "late")
        with ROLLED_BACK_FIRST:
            writes(tx, "late")
        with ROLLED_BACK_FIRST:
            tx.commit()
        tx.rollback()
        with pytest.raises(LeaseLost):
            writes(tx, "late")
        tx.rollback()
        lease.over = False
        writes(tx, "in time")
        tx.commit()
    assert db.notes() == ["in time"]


@pytest.mark.parametrize("begin", BEGUN.values(), ids=BEGUN)
def test_what_the_server_has_refused_writes_nothing_by_trying_again(db, token, begin):
    """A stale owner, and one that was not armed, which arms and begins again."""
    with db.engine() as engine, begin(engine, token(1)) as tx:
        with pytest.raises(NotArmed):
            write(tx, "early")
        with ROLLED_BACK_FIRST:
            tx.commit()
        tx.rollback()
        db.arm(token(1))
        write(tx, "armed")
        tx.commit()
        db.arm(token(2))
        with pytest.raises(StaleToken):
            write(tx, "late")
        with ROLLED_BACK_FIRST:
            write(tx, "late")
        with ROLLED_BACK_FIRST:
            tx.commit()
    assert db.notes() == ["armed"]


def test_a_listener_of_the_users_own_that_fails_first_leaves_nothing_to_commit(db, lease):
    """Where it raises, the guard is never asked for, and the session has its connection already."""
    with db.engine() as engine:
        sessions = orm.sessionmaker(engine)
        sa.event.listen(sessions, "after_begin", failing)
        with bind(sessions, lease)() as session:
            with pytest.raises(RuntimeError):
                write(session, "unguarded")
            with pytest.raises(NotEnforced, match="roll back"):
                write(session, "unguarded")
            session.connection().execute(INSERT, {"note": "unguarded"})
            with pytest.raises(NotEnforced, match="roll back"):
                session.commit()
            session.rollback()
            sa.event.remove(sessions, "after_begin", failing)
            write(session, "guarded")
            session.commit()
    assert db.notes() == ["guarded"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_autocommit_and_two_phase_commit_write_nothing_by_trying_again(db, lease, driver):
    """Where each statement would be a transaction of its own, or the last word another's."""
    with db.engine(driver) as engine:
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        for tx in (
            an_engine(autocommit, lease),
            a_session(autocommit, lease),
            a_session(engine, lease, twophase=True),
        ):
            with tx:
                for _ in range(2):
                    with pytest.raises((NotEnforced, sa.exc.PendingRollbackError)):
                        write(tx, "unguarded")
                with pytest.raises((NotEnforced, sa.exc.PendingRollbackError)):
                    tx.commit()
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("kind", ["session", "engine", "autocommit"])
def test_so_with_an_event_loop(db, lease, kind, driver):
    """The awaited halves go the same way."""

    async def run():
        async with contextlib.AsyncExitStack() as stack:
            options = {"isolation_level": "AUTOCOMMIT"} if kind == "autocommit" else {}
            engine = sa_aio.create_async_engine(db.url(driver), poolclass=sa.NullPool, **options)
            stack.push_async_callback(engine.dispose)
            if kind == "engine":
                tx = await stack.enter_async_context(aio.bind(engine, lease).connect())
            else:
                tx = await stack.enter_async_context(aio.bind(sa_aio.async_sessionmaker(engine), lease)())
            lease.over = kind != "autocommit"
            with pytest.raises((LeaseLost, NotEnforced)):
                await tx.execute(INSERT, {"note": "late"})
            with ROLLED_BACK_FIRST:
                await tx.execute(INSERT, {"note": "late"})
            with ROLLED_BACK_FIRST:
                await tx.commit()

    db.run(run())
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_begin_listener_of_the_users_own_that_fails_first_leaves_nothing_in_autocommit(db, lease, driver):
    """SQLAlchemy goes on outside of any transaction, and each statement would be there at once."""
    with db.engine(driver) as shared:
        engine = shared.execution_options(isolation_level="AUTOCOMMIT")
        sa.event.listen(engine, "begin", failing)
        with bind(engine, lease).connect() as conn:
            with pytest.raises(RuntimeError):
                write(conn, "unguarded")
            for _ in range(2):
                with pytest.raises((NotEnforced, sa.exc.InvalidRequestError)):
                    write(conn, "unguarded")
            conn.commit()
    assert db.notes() == []


ENDS = {
    "the pool's own COMMIT": lambda conn: conn.commit(),  # which does nothing, outside of any transaction
    "COMMIT as text": lambda conn: conn.exec_driver_sql("commit"),
}


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("stale", ["before", "between"])
def test_what_goes_on_after_a_begin_listener_has_failed_is_guarded(db, token, driver, end, stale):
    """SQLAlchemy begins no more transactions on the connection, and leaves COMMIT to whoever sends one."""
    db.arm(token())
    pool = sa.create_engine(db.url(driver), pool_reset_on_return="commit")
    engine = pool.execution_options()
    sa.event.listen(engine, "begin", failing)
    with contextlib.closing(bind(engine, token()).connect()) as conn:
        with pytest.raises(RuntimeError):
            write(conn, "unguarded")
        if stale == "before":
            db.arm(token(1))
            with pytest.raises(StaleToken):
                write(conn, "late")
        else:
            write(conn, "late")
            db.arm(token(1))
        with (
            pytest.raises((StaleToken, sa.exc.ResourceClosedError))
            if end is ENDS["COMMIT as text"]
            else NOTHING
        ):
            end(conn)
    pool.dispose()
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("first", [True, False], ids=["before bind", "after bind"])
def test_what_listeners_send_at_begin_is_left_alone(db, lease, driver, first):
    """An isolation level, if they come first; a tenant."""
    level = "repeatable read" if first else "read committed"

    def beginning(conn):
        if first:
            conn.execute(sa.text(f"set transaction isolation level {level}"))
        conn.execute(sa.text("select set_config('app.tenant', 'mine', true)"))

    pool = sa.create_engine(db.url(driver))
    engine = pool.execution_options()
    if first:
        sa.event.listen(engine, "begin", beginning)
    bind(engine, lease)
    if not first:
        sa.event.listen(engine, "begin", beginning)
    for note in ("one", "two"):
        with engine.begin() as conn:
            assert conn.scalar(sa.text("show app.tenant")) == "mine"
            assert conn.scalar(sa.text("show transaction_isolation")) == level
            write(conn, note)
    pool.dispose()
    assert db.notes() == ["one", "two"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_sequence_by_itself_is_left_alone(db, lease, driver):
    """SQLAlchemy begins no transaction for it; what follows on the connection is guarded as always."""
    sequence = sa.Sequence("entry_id_seq")
    with db.engine(driver) as engine, an_engine(engine, lease) as conn:
        number = conn.scalar(sequence)
        with conn.begin():
            write(conn, "one")
            assert conn.scalar(sa.text("select count(*) from sinkfence.sealed")) == 1
        assert conn.scalar(sequence) == number + 2
        assert not conn.in_transaction()
    assert db.notes() == ["one"]


@pytest.mark.parametrize("begin", [BEGUN["session on a connection"], an_engine])
def test_a_signal_in_the_middle_of_a_first_transaction_spoils_no_later_one(db, lease, begin, monkeypatch):
    """Ctrl-C raises between two lines: here when half of what looks after a connection is in place."""
    listen = sa.event.listen

    def interrupted(target, name, listener):
        listen(target, name, listener)
        if isinstance(target, sa.Connection) and name == "before_cursor_execute":
            monkeypatch.undo()
            raise KeyboardInterrupt

    with db.engine() as engine, begin(engine, lease) as tx:
        monkeypatch.setattr(sa.event, "listen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tx, "interrupted")
        with ROLLED_BACK_FIRST:
            tx.commit()
        tx.rollback()
        write(tx, "guarded")
        tx.commit()
        write(tx, "undone")
        (tx.connection() if isinstance(tx, orm.Session) else tx).connection.rollback()  # by the driver
        with pytest.raises(NotEnforced):
            tx.commit()
    assert db.notes() == ["guarded"]


@pytest.mark.parametrize("first", ["session", "engine"])
@pytest.mark.parametrize("second", ["session", "guard"])
def test_a_lease_that_is_refused_in_the_transaction_of_another_is_told(db, token, holder, first, second):
    """Whoever is bound there translates the error, and knows no bearer of that token."""
    mine, other = holder(token()), holder(token(job_id=f"{token().job_id}/other"))
    db.arm(mine.token)
    db.arm(token(1, job_id=other.token.job_id))
    with db.engine() as engine, contextlib.ExitStack() as stack:
        conn = stack.enter_context(
            (bind(engine.execution_options(), mine) if first == "engine" else engine).connect()
        )
        conn.begin()
        if first == "session":
            stack.enter_context(bind(orm.sessionmaker(conn), mine)()).connection()
        with pytest.raises(StaleToken) as refused:
            if second == "guard":
                guard(conn, other)
            else:
                stack.enter_context(bind(orm.sessionmaker(conn), other)()).connection()
    assert (mine.heard, other.heard) == ([], [refused.value])


def test_the_guard_of_one_session_stands_for_no_other_in_the_same_transaction(db, lease):
    """Sessions may join a transaction that began outside; a guard goes with the savepoint it is in."""

    def failing(*_):
        if failures:
            raise failures.pop()

    failures = []
    with db.engine() as engine, engine.connect() as conn, conn.begin() as outer:
        sessions = orm.sessionmaker(conn, join_transaction_mode="create_savepoint")
        sa.event.listen(sessions, "after_begin", failing)
        bind(sessions, lease)
        with sessions() as first:
            write(first, "undone")
            first.rollback()
        failures.append(RuntimeError())
        with sessions() as second:
            with pytest.raises(RuntimeError):
                write(second, "unguarded")
            second.connection().execute(INSERT, {"note": "unguarded"})
            with pytest.raises(NotEnforced, match="roll back"):
                second.commit()
            second.rollback()
            write(second, "guarded")
            second.commit()
        outer.commit()
    assert db.notes() == ["guarded"]
