"""What operators can see of the marks, and who is let."""

from __future__ import annotations

import datetime as dt
import secrets
import warnings

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced, SchemaMismatch, StaleToken
from sinkfence_postgres import JobMark, aio, doctor, install, marks, protect, refusal


def test_marks_are_read_by_prefix(db, token):
    """In bytewise order of the ids, each with its generation, its owner, and since when."""
    prefix = f"{token().job_id}_%:x/"
    ids = [f"{prefix}{name}" for name in ("a", "B", "\u00e9", "e\u0301")]
    start = db.admin.execute("select clock_timestamp()").fetchone()[0]
    for job_id in ids:
        db.arm(token(job_id=job_id))
    db.arm(token(1, job_id=ids[0]))
    db.arm(token(job_id=token().job_id + "_%:y"))
    found = marks(db.admin, prefix)
    assert [mark.job_id for mark in found] == sorted(ids, key=str.encode)
    [changed] = [mark for mark in found if mark.job_id == ids[0]]
    newest = token(1, job_id=ids[0])
    assert changed == JobMark(ids[0], newest.generation, newest.owner, changed.raised_at)
    assert start < changed.raised_at <= db.admin.execute("select clock_timestamp()").fetchone()[0]
    assert changed.raised_at.utcoffset() is not None
    assert set(found) < set(marks(db.admin))
    assert marks(db.admin, prefix + "none") == []


@pytest.mark.parametrize(
    "kind", ["psycopg", "dict rows", "psycopg2", "session", "aio", "aio session", "asyncpg"]
)
def test_every_kind_of_connection_reads_them(db, token, kind):
    """The same values over each."""
    db.arm(token())

    async def asynchronous():
        if kind == "aio":
            async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
                return await aio.marks(conn, token().job_id)
        async with db.async_engine("asyncpg" if kind == "asyncpg" else "psycopg") as engine:
            async with sa_aio.AsyncSession(engine) if kind == "aio session" else engine.connect() as conn:
                return await aio.marks(conn, token().job_id)

    if kind in {"aio", "aio session", "asyncpg"}:
        found = db.run(asynchronous())
    elif kind in {"psycopg", "dict rows"}:
        options = {"row_factory": psycopg.rows.dict_row} if kind == "dict rows" else {}
        with db.connect(**options) as conn:
            found = marks(conn, token().job_id)
    else:
        with db.engine(kind.replace("session", "psycopg")) as engine:
            with orm.Session(engine) if kind == "session" else engine.connect() as conn:
                found = marks(conn, token().job_id)
    assert [(mark.job_id, mark.generation, mark.owner) for mark in found] == [
        (token().job_id, token().generation, token().owner)
    ]
    assert isinstance(found[0].raised_at, dt.datetime)


@pytest.mark.parametrize("kind", ["psycopg", "psycopg2", "asyncpg"])
def test_a_transaction_that_was_begun_as_text_stays_its_owner_s(db, token, kind):
    """In autocommit, on a connection with a BEGIN of the user's own, nothing is committed by looking."""
    db.arm(token())
    begin = f"begin; select sinkfence.guard('{token().job_id}', {token().generation}, '{token().owner}')"

    def look(conn: sa.Connection) -> None:
        for part in begin.split("; "):
            conn.exec_driver_sql(part)
        with warnings.catch_warnings(action="error"):
            assert marks(conn, token().job_id)
        conn.exec_driver_sql("insert into entry (note) values ('guarded')")
        db.arm(token(1))
        with pytest.raises(Exception) as refused:
            conn.exec_driver_sql("commit")
        assert isinstance(refusal(refused.value), StaleToken)

    async def asynchronous() -> None:
        async with db.async_engine("asyncpg") as engine:
            async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
                await conn.run_sync(look)

    if kind == "asyncpg":
        db.run(asynchronous())
    else:
        with db.engine(kind) as engine:
            with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
                look(conn)
    assert db.notes() == []


def test_a_listener_that_asks_first_is_let(db, token):
    """Looking takes the isolation as it is; what must choose it says that a statement came before."""
    db.arm(token())
    with db.engine() as base:
        engine = base.execution_options(isolation_level="SERIALIZABLE")
        sa.event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("select 1"))
        with engine.connect() as conn:
            assert marks(conn, token().job_id)
        with engine.connect() as conn:
            assert doctor(conn).findings
        with engine.connect() as conn, pytest.raises(NotEnforced, match="listener"):
            protect(conn, "pg_catalog.pg_class")


def test_who_may_read_them(own_db, token):
    """A writer may not, and is told what to grant; an operator may, also after an upgrade."""
    role = f"ops_{secrets.token_hex(6)}"
    own_db.arm(token())
    own_db.admin.execute(f"create role {role}; grant sinkfence_writer to {role}")
    try:
        with own_db.connect() as conn:
            conn.execute(f"set session authorization {role}")
            conn.commit()
            with pytest.raises(SchemaMismatch, match=r"GRANT SELECT ON sinkfence\.mark"):
                marks(conn)
            own_db.admin.execute(f"grant select on sinkfence.mark to {role}")
            assert len(marks(conn)) == 1
            with own_db.connect() as installer:
                install(installer)
            assert len(marks(conn)) == 1
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute("update sinkfence.mark set max_generation = max_generation + 1")
    finally:
        own_db.admin.execute(f"drop owned by {role}; drop role {role}")


def test_a_database_without_marks_says_so(dsn):
    """Where sinkfence is not installed, it says what to run."""
    with psycopg.connect(dsn) as conn, pytest.raises(SchemaMismatch, match="install"):
        marks(conn)
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://", 1))
    with engine.connect() as conn, pytest.raises(SchemaMismatch, match="install"):
        marks(conn)
    engine.dispose()


def test_a_prefix_that_no_job_can_have_is_refused(db):
    """Before anything is sent."""
    with pytest.raises(ValueError, match="NUL"):
        marks(db.admin, "\0")
