"""Rows that keep their generation: the last one wins, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects.postgresql import insert as upsertable
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import NotEnforced, SchemaMismatch, StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import aio, fenced_execute, transaction


class Base(orm.DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "doc"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    text: orm.Mapped[str | None]
    written_by: orm.Mapped[int | None] = orm.mapped_column("generation", sa.BigInteger)
    deleted_at: orm.Mapped[datetime | None] = orm.mapped_column(sa.TIMESTAMP(timezone=True))


DOC = Doc.__table__
Execute = Callable[..., int]


@pytest.fixture(autouse=True)
def doc(db: Any) -> Any:
    """A table with a row that no generation is known of, and one that the first has written."""
    db.admin.execute("drop table if exists doc")
    db.admin.execute(
        "create table doc (id int primary key, text text, generation bigint, deleted_at timestamptz)"
    )
    yield
    db.admin.execute("drop table doc")


def rows(db: Any) -> list[tuple[Any, ...]]:
    """Text and how much later than the first the generation is, with a cross for a tombstone."""
    cross = "case when deleted_at is null then '' else '†' end"
    select = f"select id, text || {cross}, generation - 3000000001 from doc order by id"
    return db.admin.execute(select).fetchall()


@contextlib.contextmanager
def connection(db, driver="psycopg"):
    with db.engine(driver) as engine, engine.begin() as conn:
        yield conn


@contextlib.contextmanager
def psycopg2_connection(db):
    with connection(db, "psycopg2") as conn:
        yield conn


@contextlib.contextmanager
def session(db):
    with db.engine() as engine, orm.Session(engine) as session, session.begin():
        yield session


@contextlib.contextmanager
def autocommit(db):
    with db.engine() as engine, engine.connect() as conn:
        yield conn.execution_options(isolation_level="AUTOCOMMIT")


@contextlib.asynccontextmanager
async def asyncpg_connection(db):
    async with db.async_engine("asyncpg") as engine, engine.begin() as conn:
        yield conn


@contextlib.asynccontextmanager
async def async_session(db, driver="psycopg"):
    async with db.async_engine(driver) as engine, sa_aio.AsyncSession(engine) as session, session.begin():
        yield session


@contextlib.asynccontextmanager
async def asyncpg_session(db):
    async with async_session(db, "asyncpg") as session:
        yield session


SYNC = [connection, psycopg2_connection, session, autocommit]
ASYNC = [asyncpg_connection, async_session, asyncpg_session]


@pytest.fixture(params=SYNC + ASYNC, ids=lambda kind: kind.__name__)
def execute(request: pytest.FixtureRequest, db: Any) -> Execute:
    """Execute a statement in a transaction of its own, by each kind of connection and session."""

    async def asynchronous(statement, bearer, options):
        async with request.param(db) as tx:
            return await aio.fenced_execute(tx, statement, bearer, **options)

    def run(statement, bearer, **options):
        if request.param in ASYNC:
            return db.run(asynchronous(statement, bearer, options))
        with request.param(db) as tx:
            return fenced_execute(tx, statement, bearer, **options)

    return run


@pytest.fixture(params=["table", "class"])
def to(request: pytest.FixtureRequest) -> Any:
    """What is written to: a table, or a mapped class."""
    return DOC if request.param == "table" else Doc


def upsert(to: Any, *values: dict[str, Any]) -> Any:
    statement = upsertable(to).values(list(values) if len(values) > 1 else values[0])
    return statement.on_conflict_do_update(index_elements=["id"], set_={"text": statement.excluded.text})


def test_an_insert_carries_its_generation(db, token, to, execute):
    """One row, and several; what the caller says of the generation is replaced."""
    assert execute(sa.insert(to).values(id=1, text="a"), token()) == 1
    several = [{"id": 2, "text": "b"}, {"id": 3, "text": "c"}]
    assert execute(sa.insert(to).values(several), token(1)) == 2
    name = "generation" if to is DOC else "written_by"
    assert execute(sa.insert(to).values({"id": 4, "text": "d", name: 7}), token()) == 1
    assert execute(sa.insert(to).values([{"id": 5, "text": "e", name: 7}]), token()) == 1
    assert rows(db) == [(1, "a", 0), (2, "b", 1), (3, "c", 1), (4, "d", 0), (5, "e", 0)]


def test_an_update_is_written_missing_or_stale(db, token, holder, to, execute):
    """Newer and equal generations write, 0 says that no row is there, an older one is refused and told."""
    execute(sa.insert(to).values(id=1, text="first"), token())
    change = sa.update(to).where(DOC.c.id == 1)
    assert execute(change.values(text="same owner"), token()) == 1
    assert execute(change.values(text="successor"), token(2)) == 1
    assert execute(sa.update(to).where(DOC.c.id == 9).values(text="nowhere"), token(2)) == 0
    bearer = holder(token(1))
    with pytest.raises(StaleToken) as caught:
        execute(change.values(text="late"), bearer)
    assert (caught.value.token, caught.value.mark) == (token(1), token(2).generation)
    assert bearer.heard == [caught.value]
    assert rows(db) == [(1, "successor", 2)]


def test_an_upsert_is_written_or_stale(db, token, to, execute):
    """It inserts, overwrites what is not newer, and is refused by what is."""
    assert execute(upsert(to, {"id": 1, "text": "new"}), token()) == 1
    assert execute(upsert(to, {"id": 1, "text": "again"}), token(1)) == 1
    with pytest.raises(StaleToken):
        execute(upsert(to, {"id": 1, "text": "late"}), token())
    assert rows(db) == [(1, "again", 1)]


def test_a_batch_is_written_as_a_whole_or_not_at_all(db, token, to, execute):
    """One row that is newer refuses the others too, in an update, an upsert and a delete."""
    execute(sa.insert(to).values([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]), token())
    assert execute(upsert(to, {"id": 1, "text": "a1"}, {"id": 3, "text": "c1"}), token(1)) == 2
    batch = [{"id": 0, "text": "late"}, {"id": 2, "text": "late"}, {"id": 3, "text": "late"}]
    for late in (upsert(to, *batch), sa.update(to).values(text="late"), sa.delete(to)):
        with pytest.raises(StaleToken):
            execute(late, token())
    assert rows(db) == [(1, "a1", 1), (2, "b", 0), (3, "c1", 1)]
    assert execute(sa.update(to).values(text="all"), token(1)) == 3


def test_a_deleted_row_leaves_a_tombstone(db, token, to, execute):
    """It refuses stale writes as the row would, is met by no update or delete, and revived by an upsert."""
    execute(sa.insert(to).values([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]), token())
    assert execute(sa.delete(to).where(DOC.c.id == 1), token(1)) == 1
    assert rows(db) == [(1, "a†", 1), (2, "b", 0)]
    for late in (
        upsert(to, {"id": 1, "text": "late"}),
        sa.update(to).where(DOC.c.id == 1).values(text="late"),
        sa.delete(to).where(DOC.c.id == 1),
    ):
        with pytest.raises(StaleToken):
            execute(late, token())
        assert execute(sa.update(to).where(DOC.c.id == 1).values(text="missing"), token(2)) == 0
        assert execute(sa.delete(to).where(DOC.c.id == 1), token(2)) == 0
    assert rows(db) == [(1, "a†", 1), (2, "b", 0)]
    assert execute(upsert(to, {"id": 1, "text": "revived"}), token(1)) == 1
    assert rows(db) == [(1, "revived", 1), (2, "b", 0)]
    assert execute(sa.delete(to), token(1)) == 2


def test_a_delete_reaches_the_rows_that_it_would(db, token):
    """What its options leave out, and the heirs that ONLY leaves out, is left alone."""
    few = orm.with_loader_criteria(Doc, Doc.text == "two")
    with session(db) as tx:
        values = [{"id": n, "text": text} for n, text in enumerate(["one", "two", "three"])]
        assert fenced_execute(tx, sa.insert(Doc).values(values), token()) == 3
        assert fenced_execute(tx, sa.delete(Doc).options(few), token(1)) == 1
    assert rows(db) == [(0, "one", 0), (1, "two†", 1), (2, "three", 0)]
    db.admin.execute("create table heir () inherits (doc); insert into heir values (9, 'heir')")
    try:
        with connection(db) as tx:
            only = sa.delete(DOC).with_hint("ONLY", dialect_name="postgresql").prefix_with("/* all */")
            assert fenced_execute(tx, only, token(1)) == 2
        assert rows(db)[-1] == (9, "heir", None)
    finally:
        db.admin.execute("drop table heir")


def test_null_is_older_than_all(db, token, to, execute):
    """A row from before the column was added takes any generation."""
    db.admin.execute("insert into doc (id, text) values (1, 'before'), (2, 'before')")
    assert execute(sa.update(to).where(DOC.c.id == 1).values(text="seen"), token()) == 1
    assert execute(upsert(to, {"id": 2, "text": "seen"}), token()) == 1
    assert rows(db) == [(1, "seen", 0), (2, "seen", 0)]


def test_it_is_no_fence(db, token, execute):
    """A row that the successor has not written takes a stale write: why this is a second line of defence."""
    execute(sa.insert(Doc).values([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]), token())
    execute(sa.update(Doc).where(Doc.id == 1).values(text="successor"), token(1))
    assert execute(sa.update(Doc).where(Doc.id == 2).values(text="stale"), token()) == 1


def test_numbers_are_compared_as_numbers(db, token, execute):
    """9, 10, 9: the last is refused, and the largest generation of all is kept."""
    nine, ten, last = (Token("a", generation, "o") for generation in (9, 10, 10**15 - 1))
    change = sa.update(Doc).values(text="x")
    execute(sa.insert(Doc).values(id=1), nine)
    assert execute(change, ten) == 1
    with pytest.raises(StaleToken):
        execute(change, nine)
    assert execute(change, last) == 1


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_write_that_waits_sees_what_it_waited_for(db, token, isolation):
    """Old waits for the row that new has locked: it is judged by what new commits, or gets 40001."""

    def late(statement):
        with engine.begin() as conn:
            return fenced_execute(conn, statement, token())

    for statement in (
        sa.update(DOC).values(text="late"),
        upsert(DOC, {"id": 1, "text": "late"}),
        sa.delete(DOC),
    ):
        db.admin.execute("truncate doc")
        with db.engine() as shared, ThreadPoolExecutor(1) as threads:
            engine = shared.execution_options(isolation_level=isolation)
            with engine.begin() as conn:
                fenced_execute(conn, sa.insert(DOC).values(id=1, text="first"), token())
            with engine.begin() as conn:
                fenced_execute(conn, sa.update(DOC).values(text="new"), token(1))
                waiting = threads.submit(late, statement)
                db.wait_until_blocked()
            if isolation == "READ COMMITTED":
                with pytest.raises(StaleToken):
                    waiting.result()
            else:
                with pytest.raises(sa.exc.DBAPIError) as caught:
                    waiting.result()
                assert caught.value.orig.sqlstate == "40001"
        assert rows(db) == [(1, "new", 1)]


def test_a_refusal_that_is_swallowed_applies_nothing(db, token):
    """The transaction is aborted: what was written before goes with it, unless in a savepoint."""
    db.arm(token())
    with connection(db) as conn:
        fenced_execute(conn, sa.insert(DOC).values(id=1, text="new"), token(1))
    with contextlib.suppress(sa.exc.InternalError), connection(db) as conn:
        fenced_execute(conn, sa.insert(DOC).values(id=2, text="before"), token())
        with pytest.raises(StaleToken):
            fenced_execute(conn, sa.update(DOC).values(text="late"), token())
        conn.execute(sa.text("select 1"))
    assert rows(db) == [(1, "new", 1)]
    with connection(db) as conn:
        with pytest.raises(StaleToken), conn.begin_nested():
            fenced_execute(conn, sa.update(DOC).values(text="late"), token())
        fenced_execute(conn, sa.insert(DOC).values(id=3, text="after"), token())
    assert rows(db) == [(1, "new", 1), (3, "after", 0)]


def test_behind_the_fence(db, token):
    """In a guarded transaction it is the second line of defence."""
    db.arm(token())
    with db.engine() as engine, orm.Session(engine) as session, transaction(session, token()):
        assert fenced_execute(session, sa.insert(Doc).values(id=1, text="guarded"), token()) == 1
    assert rows(db) == [(1, "guarded", 0)]


def test_objects_in_a_session_are_read_anew(db, token):
    """A session's own copy of a row that was written is not left as it was."""
    with session(db) as tx:
        fenced_execute(tx, sa.insert(Doc).values(id=1, text="a"), token())
        mine = tx.get(Doc, 1)
        fenced_execute(tx, sa.update(Doc).where(Doc.id == 1).values(text="b"), token(1))
        assert (mine.text, mine.written_by) == ("b", token(1).generation)
        mine.text = "flushed first"
        fenced_execute(tx, sa.delete(Doc).where(Doc.text == "flushed first"), token(1))
        assert mine.deleted_at is not None


def cte():
    return sa.update(DOC).values(text="x").returning(DOC.c.id).cte("c")


SHAPES = {
    "returning": lambda: sa.update(DOC).values(text="x").returning(DOC.c.id),
    "from select": lambda: sa.insert(DOC).from_select(["id"], sa.select(DOC.c.id)),
    "cte": lambda: sa.update(DOC).values(text="x").add_cte(cte()),
    "cte in where": lambda: sa.update(DOC).where(DOC.c.id.in_(sa.select(cte().c.id))),
    "cte in values": lambda: sa.insert(DOC).values(id=sa.select(cte().c.id).scalar_subquery()),
    "do nothing": lambda: upsertable(DOC).values(id=1).on_conflict_do_nothing(),
    "tuples": lambda: sa.insert(DOC).values([(1, "x"), (2, "y")]),
    "no column": lambda: sa.insert(sa.table("doc", sa.column("id"))).values(id=1),
}
if hasattr(sa.delete(DOC), "using"):  # from SQLAlchemy 2.1 on
    SHAPES["using"] = lambda: sa.delete(DOC).using(
        sa.select(sa.literal(1)).where(sa.false()).subquery("none")
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_what_it_can_not_do_is_refused(db, token, shape):
    """A shape that would write unfenced, or whose answer would be dropped, is refused before it is sent."""
    with connection(db) as conn, pytest.raises(ValueError):
        fenced_execute(conn, SHAPES[shape](), token())
    assert rows(db) == []


def test_what_is_no_write_is_refused(db, token):
    """A text, a select, and a connection of psycopg, which takes no statements of SQLAlchemy."""
    with connection(db) as conn:
        for wrong in (sa.text("delete from doc"), sa.select(DOC), "delete from doc"):
            with pytest.raises(TypeError, match="insert"):
                fenced_execute(conn, wrong, token())
    with db.connect() as conn, pytest.raises(TypeError):
        fenced_execute(conn, sa.delete(DOC), token())


@pytest.mark.parametrize("kind", ["integer", "text", "numeric"])
def test_a_column_that_can_not_keep_a_generation_is_refused(db, token, kind):
    """As it is declared, before anything is sent; and as it is, where the declaration is wrong."""
    types = {"integer": sa.Integer, "text": sa.Text, "numeric": sa.Numeric}
    declared = sa.table("doc", sa.column("id", sa.Integer), sa.column("generation", types[kind]))
    with connection(db) as conn, pytest.raises(NotEnforced, match="make it BigInteger"):
        fenced_execute(conn, sa.insert(declared).values(id=1), token())
    db.admin.execute(f"alter table doc alter generation type {kind}; insert into doc values (1, 'x', 1)")
    for statement in (sa.update(DOC).values(text="y"), upsert(DOC, {"id": 1, "text": "y"}), sa.delete(DOC)):
        with pytest.raises(NotEnforced, match=f"type {kind} is no place"), connection(db) as conn:
            fenced_execute(conn, statement, Token("a", 2, "o"))


def test_a_delete_without_a_place_for_a_tombstone_is_refused(db, token):
    """A row that is gone forgets its generation."""
    bare = sa.table("doc", sa.column("id"), sa.column("generation", sa.BigInteger))
    with connection(db) as conn, pytest.raises(NotEnforced, match="tombstone"):
        fenced_execute(conn, sa.delete(bare), token())


def test_a_column_of_another_name(db, token, execute):
    """`column` names it."""
    db.admin.execute("alter table doc rename generation to fence")
    table = sa.table("doc", sa.column("id"), sa.column("fence", sa.BigInteger))
    execute(sa.insert(table).values(id=1), token(), column="fence")
    assert execute(sa.update(table), token(1), column="fence") == 1
    with pytest.raises(StaleToken):
        execute(sa.update(table), token(), column="fence")


def test_a_column_is_found_by_its_name(db, token, execute):
    """Whatever key it has in Python, and the tombstone as well."""
    table = sa.Table(
        "doc",
        sa.MetaData(),
        sa.Column("id", sa.Integer),
        sa.Column("generation", sa.BigInteger, key="gen"),
        sa.Column("deleted_at", sa.TIMESTAMP(timezone=True), key="gone"),
    )
    execute(sa.insert(table).values(id=1, gen=99), token(1))
    execute(sa.insert(table).values([{"id": 2}, {"id": 3, "gen": 99}]), token(1))
    assert execute(sa.update(table).values(id=table.c.id + 10, gen=99), token(1)) == 3
    assert execute(sa.delete(table).where(table.c.id == 11), token(1)) == 1
    with pytest.raises(StaleToken):
        execute(sa.update(table), token())
    select = "select id, generation - 3000000001, deleted_at is null from doc order by id"
    assert db.admin.execute(select).fetchall() == [(11, 1, False), (12, 1, True), (13, 1, True)]


def test_other_errors_are_the_drivers(db, token, execute):
    """A row that is there already, in a plain insert; a column that isn't."""
    execute(sa.insert(DOC).values(id=1), token())
    with pytest.raises(sa.exc.IntegrityError):
        execute(sa.insert(DOC).values(id=1), token(1))
    with pytest.raises(sa.exc.ProgrammingError):
        execute(sa.update(DOC).values(text=sa.func.no_such_function()), token(1))


def test_a_missing_installation_is_told(own_db, token):
    """One line says what to run."""
    own_db.admin.execute("create table doc (id int, text text, generation bigint, deleted_at timestamptz)")
    own_db.admin.execute("insert into doc values (1); drop schema sinkfence cascade")
    with pytest.raises(SchemaMismatch, match=r"install\(conn\)"), connection(own_db) as conn:
        fenced_execute(conn, sa.update(DOC), token())


def test_in_sql(db, token):
    """Other languages call the function themselves."""
    db.admin.execute("insert into doc values (1, 'x', 8)")
    change = "update doc set text = %s, generation = sinkfence.row_generation(generation, 'a', %s, 'o')"
    assert db.admin.execute(change, ("y", 8)).rowcount == 1
    with pytest.raises(psycopg.Error) as caught:
        db.admin.execute(change, ("z", 7))
    assert caught.value.sqlstate == "SF001"
    for wrong in (None, -5, 0, 10**15):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.admin.execute(change, ("z", wrong))
    assert db.admin.execute("select text, generation from doc").fetchall() == [("y", 8)]
