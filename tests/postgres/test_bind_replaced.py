"""What is bound commits nothing that follows the end of its guarded transaction, whatever has ended it."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced, StaleToken
from sinkfence_postgres import aio, bind

INSERT = sa.text("insert into entry (note) values (:note)")
REFUSED = pytest.raises(NotEnforced, match="guarded")

KINDS = [
    (kind, driver)
    for kind, drivers in {
        "session": ["psycopg", "psycopg2"],
        "engine": ["psycopg", "psycopg2"],
        "async session": ["psycopg", "asyncpg"],
        "async engine": ["psycopg", "asyncpg"],
    }.items()
    for driver in drivers
]


@pytest.fixture(params=KINDS, ids=" on ".join)
def work(request, db, token):
    """Run a function on a session or connection that is bound to the first owner; asynchronous ones, too."""
    kind, driver = request.param
    db.arm(token())

    async def asynchronous(function):
        async with db.async_engine(driver) as engine:
            if kind == "async engine":
                tx = aio.bind(engine.execution_options(), token()).connect()
            else:
                tx = aio.bind(sa_aio.async_sessionmaker(engine), token())()
            async with tx:
                await tx.run_sync(function)

    def run(function):
        if kind.startswith("async"):
            db.run(asynchronous(function))
            return
        with db.engine(driver) as engine:
            if kind == "engine":
                tx = bind(engine.execution_options(), token()).connect()
            else:
                tx = bind(orm.sessionmaker(engine), token())()
            with tx:
                function(tx)

    run.driver = driver
    return run


def write(tx, note):
    tx.execute(INSERT, {"note": note})


def dbapi(tx):
    conn = tx.connection() if isinstance(tx, orm.Session) else tx
    return conn.connection.dbapi_connection


def by_cursor(tx, statement):
    cursor = dbapi(tx).cursor()
    cursor.execute(statement)
    cursor.close()


ENDS = {
    "text": lambda tx, word: tx.execute(sa.text(word)),
    "cursor": by_cursor,
    "driver": lambda tx, word: getattr(dbapi(tx), word)(),
}


@pytest.mark.parametrize("word", ["commit", "rollback"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_next_statement_is_refused(db, token, work, end, word):
    """It would be in a transaction that nothing guards; so is the commit. Rolled back, it begins anew."""

    def function(tx):
        write(tx, "guarded")
        end(tx, word)
        db.arm(token(1))
        with REFUSED:
            write(tx, "unguarded")
        with REFUSED:
            tx.commit()
        tx.rollback()
        with pytest.raises(StaleToken):
            write(tx, "late")

    work(function)
    assert db.notes() == (["guarded"] if word == "commit" else [])


@pytest.mark.parametrize("word", ["commit", "rollback"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_commit_that_has_nothing_to_commit_says_so(db, work, end, word):
    """Who has sent ROLLBACK by other means must not hear that all was committed; after COMMIT it stays."""

    def function(tx):
        write(tx, "one")
        end(tx, word)
        with REFUSED:
            tx.commit()
        tx.rollback()
        write(tx, "two")
        tx.commit()

    work(function)
    assert db.notes() == (["one", "two"] if word == "commit" else ["two"])


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_what_a_cursor_has_written_after_it_is_not_committed(db, token, work, word):
    """SQLAlchemy sees nothing of that; the server tells, before COMMIT.

    After COMMIT by a cursor of psycopg2 or asyncpg, its next statement is there at once: they begin no other.
    """
    end = "cursor" if work.driver == "psycopg" else "driver"

    def function(tx):
        write(tx, "guarded")
        ENDS[end](tx, word)
        by_cursor(tx, "insert into entry (note) values ('unguarded')")
        db.arm(token(1))
        with REFUSED:
            tx.commit()

    work(function)
    assert db.notes() == (["guarded"] if word == "commit" else [])


@pytest.mark.parametrize("word", ["commit and chain", "rollback and chain"])
def test_a_chained_transaction_is_not_committed(db, token, work, word):
    """Neither driver nor SQLAlchemy sees that it is another."""

    def function(tx):
        write(tx, "guarded")
        tx.execute(sa.text(word))
        db.arm(token(1))
        write(tx, "unguarded")
        with REFUSED:
            tx.commit()

    work(function)
    assert db.notes() == (["guarded"] if word.startswith("commit") else [])


def test_an_aborted_transaction_is_not_said_to_be_committed(db, work):
    """COMMIT would roll it back without an error, after one that was swallowed."""

    def function(tx):
        write(tx, "undone")
        with contextlib.suppress(sa.exc.DBAPIError):
            tx.execute(sa.text("select 1/0"))
        with pytest.raises(sa.exc.DBAPIError, match="aborted"):
            tx.commit()

    work(function)
    assert db.notes() == []


def test_savepoints_as_text_take_no_guard_with_them(db, work):
    """The guard comes first."""

    def function(tx):
        write(tx, "one")
        tx.execute(sa.text("savepoint mine"))
        write(tx, "undone")
        tx.execute(sa.text("rollback to savepoint mine"))
        tx.commit()

    work(function)
    assert db.notes() == ["one"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_the_connection_of_a_session_confirms_its_own_commit(db, token, driver):
    """`session.connection().commit()` is asked for like the session's."""
    db.arm(token())
    with db.engine(driver) as engine, bind(orm.sessionmaker(engine), token())() as session:
        write(session, "undone")
        dbapi(session).rollback()
        by_cursor(session, "insert into entry (note) values ('unguarded')")
        with REFUSED:
            session.connection().commit()
    assert db.notes() == []
