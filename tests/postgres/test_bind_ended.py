"""What is bound takes nothing for guarded whose transaction was ended, or was begun, behind its back."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced, StaleToken
from sinkfence_postgres import aio, bind


class Base(orm.DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    note: orm.Mapped[str]


# So SQLAlchemy tells whoever rolls back what had ended already.
pytestmark = pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")

MODES = ["conditional_savepoint", "rollback_only", "control_fully", "create_savepoint"]
NOTE = sa.text("insert into entry (note) values (:note)")
BEHIND = pytest.raises(NotEnforced, match="guarded")
REFUSED = pytest.raises((NotEnforced, sa.exc.InvalidRequestError))
"""By SQLAlchemy itself, where it has heard of the refusal: it must be rolled back first."""


def execute(session, note):
    session.execute(NOTE, {"note": note})


def add(session, note):
    session.add(Entry(note=note))
    session.flush()


WRITES = {"execute": execute, "add": add}


@pytest.fixture
def conn(db):
    with db.engine() as engine, engine.connect() as conn:
        yield conn


def a_session(conn, bearer, mode):
    return bind(orm.sessionmaker(conn, join_transaction_mode=mode), bearer)()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_follows_the_transaction_that_a_session_joined_is_refused(db, token, conn, mode, end, write):
    """It was ended under the session, and another was begun, which nothing guards."""
    db.arm(token())
    conn.begin()
    with a_session(conn, token(), mode) as session:
        write(session, "guarded")
        getattr(conn, end)()
        db.arm(token(1))
        conn.begin()
        with BEHIND:
            write(session, "unguarded")
        with REFUSED:
            session.commit()
        with REFUSED:
            conn.commit()
        conn.rollback()
        session.rollback()
        with pytest.raises(StaleToken):
            write(session, "late")
    assert db.notes() == (["guarded"] if end == "commit" else [])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_session_has_written_by_its_connection_is_refused_at_its_commit(db, token, conn, mode):
    """The session doesn't see the statement, but the connection does."""
    db.arm(token())
    conn.begin()
    with a_session(conn, token(), mode) as session:
        execute(session, "undone")
        conn.rollback()
        conn.begin()
        with BEHIND:
            session.connection().execute(NOTE, {"note": "unguarded"})
        with BEHIND:
            session.commit()
        conn.rollback()
        session.rollback()
        execute(session, "guarded")
        session.commit()
        if conn.in_transaction():
            conn.commit()
    assert db.notes() == ["guarded"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_session_whose_own_connection_was_committed_is_refused(db, token, end, write):
    """By `session.connection()`; what it writes after that would be in a transaction that nothing guards."""
    db.arm(token())
    with db.engine() as engine, bind(orm.sessionmaker(engine), token())() as session:
        write(session, "guarded")
        getattr(session.connection(), end)()
        with BEHIND:
            write(session, "unguarded")
        with REFUSED:
            session.connection().commit()
        with REFUSED:
            session.commit()
        session.rollback()
        write(session, "guarded anew")
        session.commit()
    assert db.notes() == (["guarded", "guarded anew"] if end == "commit" else ["guarded anew"])


@pytest.mark.parametrize("mode", MODES)
def test_sessions_on_one_connection_whose_transaction_one_of_them_ends(db, token, conn, mode):
    """The others roll back before they go on: what guarded them is gone."""
    db.arm(token())
    conn.begin()
    sessions = bind(orm.sessionmaker(conn, join_transaction_mode=mode), token())
    with sessions() as one, sessions() as other:
        execute(one, "one")
        execute(other, "other")
        conn.rollback()
        with BEHIND:
            execute(other, "unguarded")
        with BEHIND:
            other.commit()
        other.rollback()
        one.rollback()
        execute(one, "one anew")
        one.commit()
        if conn.in_transaction():
            conn.commit()
    assert db.notes() == ["one anew"]


TEXT = sa.text("savepoint outside"), sa.text("rollback to savepoint outside")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("as_text", [False, True], ids=["begin_nested", "as text"])
def test_a_guard_that_went_with_a_savepoint_is_missed(db, token, conn, mode, as_text):
    """The savepoint was there before the session: who rolled it back may not have known of the session."""
    db.arm(token())
    with conn.begin() as outer:
        savepoint = conn.execute(TEXT[0]) if as_text else conn.begin_nested()
        with a_session(conn, token(), mode) as session:
            execute(session, "undone")
            conn.execute(TEXT[1]) if as_text else savepoint.rollback()
            db.arm(token(1))
            with contextlib.suppress(
                sa.exc.InvalidRequestError
            ):  # SQLAlchemy knows that its savepoint is gone
                session.connection().execute(NOTE, {"note": "unguarded"})
            with pytest.raises((NotEnforced, StaleToken, sa.exc.InvalidRequestError)):
                session.commit()
            if outer.is_active:
                with contextlib.suppress(sa.exc.DBAPIError):  # aborted
                    outer.commit()
    assert db.notes() == []


@pytest.mark.parametrize("mode", ["rollback_only", "create_savepoint"])
def test_a_guard_in_a_savepoint_that_was_kept_stands(db, token, conn, mode):
    """Released, it is the outer transaction's; and a savepoint within the session takes nothing from it."""
    db.arm(token())
    with conn.begin():
        with conn.begin_nested(), a_session(conn, token(), mode) as session:
            execute(session, "one")
            with contextlib.suppress(RuntimeError), session.begin_nested():
                execute(session, "undone")
                raise RuntimeError
            session.commit()
        if mode == "rollback_only":
            savepoint = conn.begin_nested()
            with a_session(conn, token(), mode) as session:
                execute(session, "two")
                savepoint.commit()
                session.commit()
    assert db.notes() == (["one", "two"] if mode == "rollback_only" else ["one"])


@pytest.mark.parametrize("stale", [0, 1])
def test_of_several_leases_on_one_connection_the_one_that_was_lost_is_told(db, token, holder, conn, stale):
    """Sessions of both wrote in the transaction whose COMMIT is refused, whichever was bound last."""
    jobs = [token(job_id=f"{token().job_id}/{number}") for number in range(2)]
    bearers = [holder(each) for each in jobs]
    for each in jobs:
        db.arm(each)
    conn.begin()
    for bearer in bearers:
        with a_session(conn, bearer, "create_savepoint") as session:
            execute(session, "late")
            session.commit()
    db.arm(token(1, job_id=jobs[stale].job_id))
    with pytest.raises(StaleToken) as refused:
        conn.commit()
    assert refused.value.token == jobs[stale]
    assert [bearer.heard for bearer in bearers] == [[refused.value], []][:: 1 if stale == 0 else -1]
    assert db.notes() == []


def test_so_with_an_event_loop(db, token):
    """The awaited halves go the same way."""
    db.arm(token())

    async def run():
        async with db.async_engine() as engine, engine.connect() as conn:
            await conn.begin()
            async with aio.bind(sa_aio.async_sessionmaker(conn), token())() as session:
                await session.execute(NOTE, {"note": "guarded"})
                await conn.commit()
                await conn.begin()
                with BEHIND:
                    await session.execute(NOTE, {"note": "unguarded"})
                with BEHIND:
                    await session.commit()
                with BEHIND:
                    await conn.commit()
                await conn.rollback()
                await session.rollback()
                await conn.begin()
                await session.execute(NOTE, {"note": "guarded anew"})
                await session.commit()
                await conn.commit()

    db.run(run())
    assert db.notes() == ["guarded", "guarded anew"]
