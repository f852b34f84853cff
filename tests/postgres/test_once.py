"""A step of a job is done once, in the transaction that says so."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from enum import Enum
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

import sinkfence_postgres
from sinkfence.errors import IdempotencyMismatch, NotEnforced, SchemaMismatch, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import aio, clean_ledger, guard, once, transaction, translated

INSERT = "insert into entry (note) values ('{}')"


@contextlib.contextmanager
def psycopg_(db):
    with db.connect() as conn:
        yield conn


@contextlib.contextmanager
def psycopg_pipeline(db):
    with db.connect() as conn, conn.pipeline():
        yield conn


@contextlib.contextmanager
def sqlalchemy_connection(db, driver="psycopg"):
    with db.engine(driver) as engine, engine.connect() as conn:
        yield conn


@contextlib.contextmanager
def sqlalchemy_session(db):
    with db.engine() as engine, orm.Session(engine) as session:
        yield session


@contextlib.contextmanager
def psycopg2_connection(db):
    with sqlalchemy_connection(db, "psycopg2") as conn:
        yield conn


@contextlib.asynccontextmanager
async def psycopg_async(db):
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
        yield conn


@contextlib.asynccontextmanager
async def async_connection(db):
    async with db.async_engine() as engine, engine.connect() as conn:
        yield conn


@contextlib.asynccontextmanager
async def asyncpg_session(db):
    async with db.async_engine("asyncpg") as engine, sa_aio.AsyncSession(engine) as session:
        yield session


SYNC = [psycopg_, psycopg_pipeline, sqlalchemy_connection, sqlalchemy_session, psycopg2_connection]
ASYNC = [psycopg_async, async_connection, asyncpg_session]

Step = Callable[..., Any]


@pytest.fixture(params=SYNC + ASYNC, ids=lambda kind: kind.__name__)
def step(request: pytest.FixtureRequest, db: Any) -> Step:
    """`step(bearer, name, result)`: do a step that writes its name as a note, by each kind of connection.

    The result may be an exception, to be raised after the write, or what makes the result.
    """

    def made(result):
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result

    def sync(bearer, name, result, guarded=transaction):
        with request.param(db) as tx, guarded(tx, bearer):

            def call():
                tx.execute(sql(tx, INSERT.format(name)))
                return made(result)

            return once(tx, bearer, name, call)

    async def asynchronous(bearer, name, result, guarded=aio.transaction):
        async with request.param(db) as tx, guarded(tx, bearer):

            async def call():
                await tx.execute(sql(tx, INSERT.format(name)))
                return made(result)

            return await aio.once(tx, bearer, name, call)

    def run(bearer, name="step", result=None, **options):
        if request.param in SYNC:
            return sync(bearer, name, result, **options)
        return db.run(asynchronous(bearer, name, result, **options))

    return run


def sql(tx: Any, text: str) -> Any:
    return text if isinstance(tx, psycopg.Connection | psycopg.AsyncConnection) else sa.text(text)


def entries(db: Any, job_id: str) -> list[tuple[Any, ...]]:
    select = "select key, fingerprint, generation, result from sinkfence.ledger where scope = %s"
    return db.admin.execute(select, (f"once:{job_id}",)).fetchall()


def test_a_step_is_done_once(db, token, step):
    """A repetition calls nothing and gets what was kept: the first result, whatever it would make now."""
    db.arm(token())
    assert step(token(), result={"paid": [1, 2.5, None, "\x00ä"]}) == {"paid": [1, 2.5, None, "\x00ä"]}
    assert step(token(), result=pytest.fail) == {"paid": [1, 2.5, None, "\x00ä"]}
    assert step(token(), name="another", result=(1, 2)) == [1, 2]
    assert db.notes() == ["step", "another"]
    assert sorted(entries(db, token().job_id)) == sorted(
        [
            (token().key("step"), "step", token().generation, {"paid": [1, 2.5, None, "\x00ä"]}),
            (token().key("another"), "another", token().generation, [1, 2]),
        ]
    )


def test_a_step_of_an_enum_is_the_step_of_its_value(db, token, step):
    """A job and a step that are members of a str Enum are those that another worker names by a plain str."""
    names = Enum("names", {"JOB": token().job_id, "STEP": "step"}, type=str)
    db.arm(token())
    bearer = Token(names.JOB, token().generation, token().owner)
    assert step(bearer, name=names.STEP, result="first") == "first"
    assert step(token(), result=pytest.fail) == "first"


def test_a_successor_gets_what_its_predecessor_has_kept(db, token, step):
    """Neither generation nor owner is part of the key; the predecessor itself is refused."""
    db.arm(token())
    assert step(token(), result="first") == "first"
    db.arm(token(1))
    assert step(token(1), result=pytest.fail) == "first"
    with pytest.raises(StaleToken):
        step(token(), result=pytest.fail)
    assert db.notes() == ["step"]


def test_a_step_without_a_result_is_done_too(db, token, step):
    """A result of None is kept like any other."""
    db.arm(token())
    assert step(token()) is None
    assert step(token(), result=pytest.fail) is None
    assert db.notes() == ["step"]


def test_a_refused_commit_leaves_no_entry(db, token, step):
    """An entry that a stale owner has made goes with its transaction, and the successor does the step."""
    db.arm(token())
    with pytest.raises(StaleToken):
        step(token(), result=lambda: db.arm(token(1)))
    assert entries(db, token().job_id) == []
    assert step(token(1), result="mine") == "mine"
    assert db.notes() == ["step"]


def test_a_step_that_raises_is_not_done(db, token, step):
    """The exception passes; what was written and the entry are undone, and a repetition does the step."""
    db.arm(token())
    mine = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught:
        step(token(), result=mine)
    assert caught.value is mine
    assert db.notes() == []
    assert step(token(), result=1) == 1


def test_an_unguarded_transaction_is_refused(db, token, step):
    """Where the transaction is not guarded for the bearer the call is not made, and nothing is kept."""
    db.arm(token())
    unguarded, unguarded_async = contextlib.ExitStack, contextlib.AsyncExitStack

    def guarded(tx, bearer):
        return unguarded_async() if hasattr(tx, "__aenter__") else unguarded()

    with pytest.raises(NotEnforced):
        step(token(), result=pytest.fail, guarded=guarded)
    assert entries(db, token().job_id) == []


def test_what_can_not_be_kept_is_refused(db, token, step):
    """A result that is no JSON, or too long, and a malformed name: refused, with nothing applied."""
    db.arm(token())
    deep = json.loads("[" * 101 + "]" * 101)
    nan = float("nan")
    for wrong, error in ((object(), TypeError), *((it, ValueError) for it in (nan, "x" * 65_535, deep))):
        with pytest.raises(error):
            step(token(), result=wrong)
    with pytest.raises(ValueError, match="step must be"):
        step(token(), name="", result=pytest.fail)
    assert db.notes() == []
    assert step(token(), result="x" * 65_534) == "x" * 65_534


def test_a_step_that_raises_may_be_got_over(db, token):
    """Caught inside the transaction, the exception leaves the rest of it as it was."""
    db.arm(token())

    def fail():
        conn.execute(INSERT.format("failed"))
        conn.execute("select 1/0")

    with db.connect() as conn, transaction(conn, token()):
        conn.execute(INSERT.format("before"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            once(conn, token(), "step", fail)
        once(conn, token(), "other", lambda: conn.execute(INSERT.format("other")) and None)
    assert db.notes() == ["before", "other"]
    assert [key for key, *_ in entries(db, token().job_id)] == [token().key("other")]


def test_objects_of_a_session_belong_to_the_step(db, token):
    """What the call adds to a session is flushed in its savepoint; what was added before is not undone."""
    base = orm.declarative_base()
    entry = type(
        "Entry", (base,), {"__tablename__": "entry", "id": sa.Column(primary_key=True, type_=sa.BigInteger)}
    )
    entry.note = sa.Column(sa.Text)
    db.arm(token())

    def fail():
        session.add(entry(note="undone"))
        raise RuntimeError

    with db.engine() as engine, orm.Session(engine) as session, transaction(session, token()):
        session.add(entry(note="before"))
        with pytest.raises(RuntimeError):
            once(session, token(), "step", fail)
        once(session, token(), "step", lambda: session.add(entry(note="step")))
    assert db.notes() == ["before", "step"]


@pytest.mark.parametrize("half", ["sync", "async"])
def test_a_quiet_rollback_inside_a_step_undoes_the_block(db, token, half):
    """psycopg.Rollback ends the step's savepoint without an error: it goes on to the block around."""
    db.arm(token())

    def leave():
        raise psycopg.Rollback

    async def leave_async():
        raise psycopg.Rollback

    async def run():
        async with psycopg_async(db) as conn, aio.transaction(conn, token()):
            await conn.execute(INSERT.format("undone"))
            await aio.once(conn, token(), "step", leave_async)
            pytest.fail("went on")

    if half == "async":
        db.run(run())
    else:
        with db.connect() as conn, transaction(conn, token()):
            conn.execute(INSERT.format("undone"))
            once(conn, token(), "step", leave)
            pytest.fail("went on")
    assert db.notes() == []


def test_the_bearer_of_the_step_is_the_one_that_is_guarded(db, token):
    """A transaction that is guarded for another job, or has ended, is none for this step."""
    other = token(job_id=token().job_id + "/other")
    db.arm(token())
    db.arm(other)
    with db.connect() as conn:
        with pytest.raises(NotEnforced), transaction(conn, other):
            once(conn, token(), "step", pytest.fail)
        guard(conn, token())
        conn.commit()
        with pytest.raises(NotEnforced):
            once(conn, token(), "step", pytest.fail)
    with db.connect(autocommit=True) as conn, pytest.raises(NotEnforced):
        once(conn, token(), "step", pytest.fail)
    assert entries(db, token().job_id) == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("kind", [*SYNC, *ASYNC], ids=lambda kind: kind.__name__)
def test_a_step_that_ends_its_transaction_has_no_result(db, token, kind, end):
    """It is told so. Where it has committed, its entry stands, and nobody is given a result for it."""
    db.arm(token())

    def ended(tx):
        if kind in (psycopg_, psycopg_pipeline, psycopg_async):  # whose block refuses commit()
            return tx.execute(end)
        return getattr(tx, end)()

    def sync(call):
        with kind(db) as tx, transaction(tx, token()):
            once(tx, token(), "step", lambda: call(tx) and None)

    async def asynchronous(call):
        async with kind(db) as tx, aio.transaction(tx, token()):

            async def done():
                if coroutine := call(tx):
                    await coroutine

            await aio.once(tx, token(), "step", done)

    for call in (ended, lambda _: pytest.fail("done again") if end == "commit" else ended(_)):
        with pytest.raises(NotEnforced):
            sync(call) if kind in SYNC else db.run(asynchronous(call))
    assert [row[1:] for row in entries(db, token().job_id)] == (
        [("step", token().generation, None)] if end == "commit" else []
    )


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_there_is_no_step_in_autocommit(db, token, driver):
    """It would be a transaction of its own, which nobody has guarded."""
    db.arm(token())

    async def asynchronous():
        engine = sa_aio.create_async_engine(db.url(driver), isolation_level="AUTOCOMMIT")
        async with engine.connect() as conn:
            with pytest.raises(NotEnforced):
                await aio.once(conn, token(), "step", pytest.fail)
        await engine.dispose()

    if driver == "asyncpg":
        db.run(asynchronous())
        return
    with db.engine(driver) as engine:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            with pytest.raises(NotEnforced):
                once(conn, token(), "step", pytest.fail)


def test_a_step_is_no_part_of_itself(db, token):
    """Called again while it is under way, it is refused."""
    db.arm(token())
    with db.connect() as conn, pytest.raises(NotEnforced, match="under way"), transaction(conn, token()):
        once(conn, token(), "step", lambda: once(conn, token(), "step", pytest.fail))
    assert entries(db, token().job_id) == []


def test_several_steps_and_jobs_in_one_transaction(db, token):
    """Each job has its own steps; a step that comes twice in one transaction is done once."""
    other = token(job_id=token().job_id + "/other")
    db.arm(token())
    db.arm(other)
    with db.connect() as conn, transaction(conn, token(), other):
        made = iter("abc")
        results = [once(conn, each, "step", lambda: next(made)) for each in (token(), other, token())]
    assert results == ["a", "b", "a"]


def test_a_key_that_was_used_for_something_else_is_refused(db, token):
    """An entry under this key whose fingerprint is another, as another program may have made it."""
    db.arm(token())
    entry = (f"once:{token().job_id}", token().key("step"), "something else", token().generation)
    insert = "insert into sinkfence.ledger (scope, key, fingerprint, generation) values (%s, %s, %s, %s)"
    db.admin.execute(insert, entry)
    with db.connect() as conn, pytest.raises(IdempotencyMismatch, match="something else"):
        with transaction(conn, token()):
            once(conn, token(), "step", pytest.fail)


ISOLATION = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_two_at_once(db, token, isolation, end, driver):
    """The second waits for the end of the first: after a commit it gets the first's result, else does it."""
    db.arm(token())
    begun = []

    def second():
        with engine.connect() as conn, translated():
            conn.execute(sa.text("select 1 from entry"))  # its snapshot is older than the first's commit
            begun.append(True)
            guard(conn, token())
            result = once(conn, token(), "step", lambda: "second")
            conn.commit()
            return result

    with db.engine(driver) as shared, ThreadPoolExecutor(1) as threads:
        engine = shared.execution_options(isolation_level=isolation)
        with engine.connect() as conn:
            guard(conn, token())
            assert once(conn, token(), "step", lambda: "first") == "first"
            waiting = threads.submit(second)
            db.wait_until_blocked()
            assert begun
            getattr(conn, end)()
        if end == "commit" and isolation != "READ COMMITTED":
            with pytest.raises(sa.exc.DBAPIError) as caught:
                waiting.result()
            assert sinkfence_postgres.refusals.repeatable(caught.value)
            assert second() == "first"  # repeated as a whole, with a snapshot of its own
        else:
            assert waiting.result() == ("first" if end == "commit" else "second")
    assert len(entries(db, token().job_id)) == 1


@pytest.mark.parametrize("end", ["before", "after"])
def test_a_successor_that_waits_for_a_step(db, token, end):
    """What was committed before it armed is the result; a later commit is refused, and it does the step."""
    db.arm(token())

    def successor():
        with db.connect() as conn, transaction(conn, token(1)):
            return once(conn, token(1), "step", lambda: "successor's")

    with db.connect() as conn, ThreadPoolExecutor(1) as threads:
        guard(conn, token(), lock=end == "before")
        assert once(conn, token(), "step", lambda: "predecessor's") == "predecessor's"
        if end == "before":
            arming = threads.submit(db.arm, token(1))
            db.wait_until_blocked()
            conn.commit()
            arming.result()
            assert successor() == "predecessor's"
        else:
            db.arm(token(1))
            waiting = threads.submit(successor)
            db.wait_until_blocked()
            with pytest.raises(StaleToken), translated():
                conn.commit()
            assert waiting.result() == "successor's"
    [(_, _, generation, result)] = entries(db, token().job_id)
    done_by = (token(), "predecessor's") if end == "before" else (token(1), "successor's")
    assert (generation, result) == (done_by[0].generation, done_by[1])


def test_a_predecessor_frozen_in_a_step_ends_with_its_transaction(db, token):
    """A successor that has evicted a frozen owner does not wait for the entry that it has made."""
    db.arm(token())
    with db.connect() as frozen, db.connect() as conn:
        guard(frozen, token())
        once(frozen, token(), "step", lambda: "frozen")
        sinkfence_postgres.PostgresSink(db.dsn).arm(token(1), evict=True)
        with transaction(conn, token(1)):
            assert once(conn, token(1), "step", lambda: "new") == "new"
        with pytest.raises(psycopg.OperationalError):
            frozen.commit()
        frozen.close()


# The clean-up


@pytest.fixture
def old_entries(db):
    db.admin.execute("delete from sinkfence.ledger")

    def make(count: int, age: str) -> None:
        db.admin.execute(
            "insert into sinkfence.ledger select 'once:a', %(age)s || n, '', 1, null,"
            " clock_timestamp() - cast(%(age)s as interval) from generate_series(1, %(count)s) n",
            {"age": age, "count": count},
        )

    return make


def left(db) -> int:
    return db.admin.execute("select count(*) from sinkfence.ledger").fetchone()[0]


@pytest.mark.parametrize("kind", [psycopg_, sqlalchemy_connection, psycopg_async, async_connection])
def test_old_entries_are_cleaned_away(db, old_entries, monkeypatch, kind):
    """In batches that are transactions of their own; entries that are younger stay."""
    old_entries(25, "8 days")
    old_entries(3, "6 days")
    monkeypatch.setattr(sinkfence_postgres.ledger, "BATCH", 10)

    async def run():
        async with kind(db) as conn:
            return await aio.clean_ledger(conn, timedelta(days=7))

    if kind in ASYNC:
        assert db.run(run()) == 25
    else:
        with kind(db) as conn:
            assert clean_ledger(conn, timedelta(days=7)) == 25
    assert left(db) == 3


def test_a_clean_up_is_part_of_an_open_transaction(db, old_entries):
    """The caller who has begun commits."""
    old_entries(2, "8 days")
    with db.connect() as conn:
        conn.execute("select 1")
        assert clean_ledger(conn, timedelta(days=7)) == 2
        assert left(db) == 2
        conn.rollback()
        assert left(db) == 2
        for wrong in (timedelta(0), timedelta(days=-1)):
            with pytest.raises(ValueError, match="positive"):
                clean_ledger(conn, wrong)


def test_nothing_is_older_than_all_time(db, old_entries):
    """The longest timedelta goes back further than the server's calendar."""
    old_entries(1, "300 years")
    with db.connect() as conn:
        assert clean_ledger(conn, timedelta.max) == 0
    assert left(db) == 1


def test_two_clean_ups_at_once_do_not_wait_for_each_other(db, old_entries):
    """What another one is about to delete is left to it."""
    old_entries(4, "8 days")
    with db.connect() as one, db.connect() as two:
        one.execute("select sinkfence.clean_ledger(interval '7 days', 3)")
        assert clean_ledger(two, timedelta(days=7)) == 1
        one.commit()
    assert left(db) == 0


def test_writers_can_neither_clean_nor_rewrite(db, token, old_entries):
    """The role of the application does steps, and can't forget any: clean-up is for operators."""
    old_entries(1, "8 days")
    db.arm(token())
    with db.connect() as conn:
        conn.execute("create role once_writer; grant sinkfence_writer to once_writer; set role once_writer")
        guard(conn, token())
        assert once(conn, token(), "step", lambda: 1) == 1
        for refused in (
            "select sinkfence.clean_ledger(interval '1 day')",
            "delete from sinkfence.ledger",
            "update sinkfence.ledger set fingerprint = ''",
            "update sinkfence.ledger set generation = 1",
            "truncate sinkfence.ledger",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
                conn.execute(refused)
        with pytest.raises(SchemaMismatch, match="clean_ledger TO"):
            clean_ledger(conn, timedelta(days=1))
        conn.rollback()


def test_a_missing_ledger_is_told(own_db, token):
    """A database of an earlier version has none: one line says what to run."""
    own_db.arm(token())
    own_db.admin.execute("drop table sinkfence.ledger")
    with own_db.connect() as conn, pytest.raises(SchemaMismatch, match=r"install\(conn\)"):
        with transaction(conn, token()):
            once(conn, token(), "step", pytest.fail)
    own_db.admin.execute("drop function sinkfence.clean_ledger")
    with own_db.connect() as conn, pytest.raises(SchemaMismatch, match=r"install\(conn\)"):
        clean_ledger(conn, timedelta(days=1))
