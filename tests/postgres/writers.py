"""Every kind of writer: each writes one row in a guarded transaction, and calls something before COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import flask_sqlalchemy
import psycopg
import psycopg_pool
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

import sinkfence_postgres
from sinkfence_postgres import aio


class Base(orm.DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entry"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    note: orm.Mapped[str]


Between = Callable[[], None]
"""Called after the write and before COMMIT."""


def psycopg_(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.connect() as conn, sinkfence_postgres.transaction(conn, bearer):
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def psycopg_autocommit(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.connect(autocommit=True) as conn, sinkfence_postgres.transaction(conn, bearer):
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def psycopg_pipeline(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.connect() as conn, conn.pipeline(), sinkfence_postgres.transaction(conn, bearer):
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def psycopg_raw_cursor(db: Any, bearer: Any, note: str, between: Between) -> None:
    options = {"cursor_factory": psycopg.RawCursor, "row_factory": psycopg.rows.dict_row}
    with db.connect(**options) as conn, sinkfence_postgres.transaction(conn, bearer):
        conn.execute("insert into entry (note) values ($1)", (note,))
        between()


def psycopg_copy(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.connect() as conn, sinkfence_postgres.transaction(conn, bearer):
        with conn.cursor().copy("copy entry (note) from stdin") as copy:
            copy.write_row((note,))
        between()


def psycopg_executemany(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.connect() as conn, sinkfence_postgres.transaction(conn, bearer):
        conn.cursor().executemany("insert into entry (note) values (%s)", [(note,)])
        between()


def pool(db: Any, bearer: Any, note: str, between: Between) -> None:
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, open=True) as pool:
        with pool.connection() as conn, sinkfence_postgres.transaction(conn, bearer):
            conn.execute("insert into entry (note) values (%s)", (note,))
            between()


def sqlalchemy_connection(db: Any, bearer: Any, note: str, between: Between, driver: str = "psycopg") -> None:
    with db.engine(driver) as engine:
        with engine.connect() as conn, sinkfence_postgres.transaction(conn, bearer):
            conn.execute(sa.insert(Entry).values(note=note))
            between()


def sqlalchemy_session(db: Any, bearer: Any, note: str, between: Between, driver: str = "psycopg") -> None:
    with db.engine(driver) as engine:
        with orm.Session(engine) as session, sinkfence_postgres.transaction(session, bearer):
            session.add(Entry(note=note))  # flushed at COMMIT
            between()


def core_executemany(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        with engine.connect() as conn, sinkfence_postgres.transaction(conn, bearer):
            conn.execute(sa.insert(Entry.__table__), [{"note": note}])
            between()


def bulk_insert(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        with orm.Session(engine) as session, sinkfence_postgres.transaction(session, bearer):
            session.execute(sa.insert(Entry), [{"note": note}])
            between()


def bulk_save(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        with orm.Session(engine) as session, sinkfence_postgres.transaction(session, bearer):
            session.bulk_save_objects([Entry(note=note)])
            between()


def bound_session(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        sessions = sinkfence_postgres.bind(orm.sessionmaker(engine), bearer)
        with sinkfence_postgres.translated(), sessions.begin() as session:
            session.add(Entry(note=note))
            session.flush()
            between()


def flask_session(db: Any, bearer: Any, note: str, between: Between) -> None:
    app = flask.Flask("writer")
    app.config["SQLALCHEMY_DATABASE_URI"] = db.url()
    extension = flask_sqlalchemy.SQLAlchemy(app)
    with app.app_context():
        try:
            with sinkfence_postgres.transaction(extension.session, bearer):
                extension.session.add(Entry(note=note))
                between()
        finally:
            extension.session.remove()
            extension.engine.dispose()


def scoped_session(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        session = orm.scoped_session(orm.sessionmaker(engine))
        try:
            with sinkfence_postgres.transaction(session, bearer):
                session.add(Entry(note=note))
                session.flush()
                between()
        finally:
            session.remove()


def psycopg2_connection(db: Any, bearer: Any, note: str, between: Between) -> None:
    sqlalchemy_connection(db, bearer, note, between, "psycopg2")


def psycopg2_session(db: Any, bearer: Any, note: str, between: Between) -> None:
    sqlalchemy_session(db, bearer, note, between, "psycopg2")


def own_commit(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine, orm.Session(engine) as session:
        sinkfence_postgres.guard(session, bearer)
        session.add(Entry(note=note))
        between()
        with sinkfence_postgres.translated():
            session.commit()


def sink_of_dsn(db: Any, bearer: Any, note: str, between: Between) -> None:
    with sinkfence_postgres.PostgresSink(db.dsn).begin(bearer) as conn:
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def sink_of_pool(db: Any, bearer: Any, note: str, between: Between) -> None:
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, open=True) as pool:
        with sinkfence_postgres.PostgresSink(pool).begin(bearer) as conn:
            conn.execute("insert into entry (note) values (%s)", (note,))
            between()


def sink_of_engine(db: Any, bearer: Any, note: str, between: Between) -> None:
    with db.engine() as engine:
        with sinkfence_postgres.PostgresSink(engine).begin(bearer) as conn:
            conn.execute(sa.insert(Entry).values(note=note))
            between()


async def psycopg_async(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn, aio.transaction(conn, bearer):
        await conn.execute("insert into entry (note) values (%s)", (note,))
        between()


async def psycopg_async_pipeline(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
        async with conn.pipeline(), aio.transaction(conn, bearer):
            await conn.execute("insert into entry (note) values (%s)", (note,))
            between()


async def psycopg_async_copy(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn, aio.transaction(conn, bearer):
        async with conn.cursor().copy("copy entry (note) from stdin") as copy:
            await copy.write_row((note,))
        between()


async def async_pool(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1, open=False) as pool:
        async with pool.connection() as conn, aio.transaction(conn, bearer):
            await conn.execute("insert into entry (note) values (%s)", (note,))
            between()


async def async_connection(
    db: Any, bearer: Any, note: str, between: Between, driver: str = "psycopg"
) -> None:
    async with db.async_engine(driver) as engine:
        async with engine.connect() as conn, aio.transaction(conn, bearer):
            await conn.execute(sa.insert(Entry).values(note=note))
            between()


async def async_session(db: Any, bearer: Any, note: str, between: Between, driver: str = "psycopg") -> None:
    async with db.async_engine(driver) as engine:
        async with sa_aio.AsyncSession(engine) as session, aio.transaction(session, bearer):
            session.add(Entry(note=note))
            between()


async def asyncpg_connection(db: Any, bearer: Any, note: str, between: Between) -> None:
    await async_connection(db, bearer, note, between, "asyncpg")


async def asyncpg_session(db: Any, bearer: Any, note: str, between: Between) -> None:
    await async_session(db, bearer, note, between, "asyncpg")


async def async_own_commit(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with db.async_engine("asyncpg") as engine:
        async with sa_aio.AsyncSession(engine) as session:
            await aio.guard(session, bearer)
            session.add(Entry(note=note))
            between()
            async with aio.translated():
                await session.commit()


async def async_sink_of_dsn(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with aio.PostgresSink(db.dsn).begin(bearer) as conn:
        await conn.execute("insert into entry (note) values (%s)", (note,))
        between()


async def async_sink_of_pool(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with psycopg_pool.AsyncConnectionPool(db.dsn, min_size=1, open=False) as pool:
        async with aio.PostgresSink(pool).begin(bearer) as conn:
            await conn.execute("insert into entry (note) values (%s)", (note,))
            between()


async def async_sink_of_engine(db: Any, bearer: Any, note: str, between: Between) -> None:
    async with db.async_engine("asyncpg") as engine:
        async with aio.PostgresSink(engine).begin(bearer) as conn:
            await conn.execute(sa.insert(Entry).values(note=note))
            between()


WRITERS = [
    psycopg_,
    psycopg_autocommit,
    psycopg_pipeline,
    psycopg_raw_cursor,
    psycopg_copy,
    psycopg_executemany,
    pool,
    sqlalchemy_connection,
    sqlalchemy_session,
    core_executemany,
    bulk_insert,
    bulk_save,
    bound_session,
    scoped_session,
    flask_session,
    psycopg2_connection,
    psycopg2_session,
    own_commit,
    sink_of_dsn,
    sink_of_pool,
    sink_of_engine,
    psycopg_async,
    psycopg_async_pipeline,
    psycopg_async_copy,
    async_pool,
    async_connection,
    async_session,
    asyncpg_connection,
    asyncpg_session,
    async_own_commit,
    async_sink_of_dsn,
    async_sink_of_pool,
    async_sink_of_engine,
]
