"""A protected table refuses whoever writes without a guard, or to a row of a job that is not guarded."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import JobMismatch, MissingToken, NotEnforced, SchemaMismatch, StaleToken
from sinkfence_postgres import aio, guard, protect, refusal, transaction, translated

MODES = pytest.mark.parametrize("column", [None, "job"], ids=["any job", "by job"])


@pytest.fixture
def shop(db):
    """A schema of this test's own, with a table of orders of jobs, and what refers to it."""
    name = f"shop_{secrets.token_hex(6)}"
    db.admin.execute(
        f"""
        create schema {name}
          create table orders (id bigint primary key, job text, note text)
          create table lines (
            id bigint, job text, of bigint references orders on delete cascade on update cascade
          )
          create view open_orders as select * from orders where note <> 'done'
          create table plain (id bigint, job text, note text)
        """
    )
    yield name
    db.admin.execute(f"drop schema {name} cascade")


def fill(db, shop, token):
    """One order of the test's job, with a line, and one of another job."""
    db.admin.execute(
        f"insert into {shop}.orders values (1, %s, 'old'), (2, 'another', 'old')", (token().job_id,)
    )
    db.admin.execute(f"insert into {shop}.lines values (1, %s, 1), (2, 'another', 2)", (token().job_id,))
    db.admin.execute(f"insert into {shop}.plain values (5, %s, 'new'), (1, %s, 'new')", [token().job_id] * 2)


def rows(db, shop, table="orders"):
    return db.admin.execute(f"select * from {shop}.{table} order by id").fetchall()


WRITES = {
    "insert": "insert into {s}.orders values (3, '{job}', 'new')",
    "insert select": "insert into {s}.orders select id, job, note from {s}.plain where id = 5",
    "update": "update {s}.orders set note = 'new' where id = 1",
    "update of nothing": "update {s}.orders set note = 'new' where false",
    "delete": "delete from {s}.orders where id = 1",
    "upsert": "insert into {s}.orders values (1, '{job}', 'x') on conflict (id) do update set note = 'new'",
    "do nothing": "insert into {s}.orders values (1, '{job}', 'x') on conflict do nothing",
    "cte": "with w as (delete from {s}.orders where id = 1 returning *) insert into {s}.plain table w",
    "view": "update {s}.open_orders set note = 'new' where id = 1",
    "function": "do $$ begin update {s}.orders set note = 'new' where id = 1; end $$",
    "merge": "merge into {s}.orders o using {s}.plain p on o.id = p.id"
    " when matched then update set note = p.note when not matched then insert values (p.id, p.job, p.note)",
}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_protecting_in_a_snapshot_is_refused(db, shop, isolation):
    """An open transaction wouldn't see what came while it waited; one of our own is READ COMMITTED."""

    async def asynchronous():
        async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
            await conn.execute(f"set transaction isolation level {isolation}")
            with pytest.raises(NotEnforced, match=isolation):
                await aio.protect(conn, f"{shop}.orders")
            await conn.rollback()
            await conn.execute(f"set session characteristics as transaction isolation level {isolation}")
            await conn.commit()
            await aio.protect(conn, f"{shop}.orders")

    for level in (isolation.upper(), "AUTOCOMMIT"):
        engine = sa.create_engine(db.url(), isolation_level=level, poolclass=sa.NullPool)
        with engine.connect() as conn:
            if level != "AUTOCOMMIT":
                conn.execute(sa.text("select 1"))
                with pytest.raises(NotEnforced, match=isolation):
                    protect(conn, f"{shop}.plain")
                conn.rollback()
            protect(conn, f"{shop}.plain")
    db.run(asynchronous())
    protected = "select count(*) from sinkfence.protected() where starts_with(relation, %s) and lacks is null"
    assert db.admin.execute(protected, (shop,)).fetchone() == (2,)


@MODES
@pytest.mark.parametrize("write", WRITES)
def test_a_write_without_a_guard_is_refused(db, shop, token, column, write):
    """Raw SQL of any kind is refused with SF002, and the same in a guarded transaction is written."""
    if "merge" in write and db.admin.info.server_version < 150000:
        pytest.skip("not run: MERGE came with PostgreSQL 15")
    fill(db, shop, token)
    protect(db.admin, f"{shop}.orders", job_id=column)
    before = rows(db, shop)
    statement = WRITES[write].format(s=shop, job=token().job_id)
    with db.connect() as conn, pytest.raises(psycopg.Error) as caught:
        conn.execute(statement)
    assert caught.value.sqlstate == "SF002"
    assert (caught.value.diag.schema_name, caught.value.diag.table_name) == (shop, "orders")
    assert isinstance(refusal(caught.value), MissingToken)
    assert rows(db, shop) == before
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        conn.execute(statement)
    assert (rows(db, shop) == before) == (write in {"update of nothing", "do nothing"})


@MODES
def test_a_copy_without_a_guard_is_refused(db, shop, token, column):
    """COPY, too."""
    protect(db.admin, f"{shop}.orders", job_id=column)
    db.arm(token())

    def copy(conn):
        with conn.cursor().copy(f"copy {shop}.orders from stdin") as rows:
            rows.write_row((1, token().job_id, "copied"))

    with db.connect() as conn, pytest.raises(psycopg.Error, match="without a fencing token"):
        copy(conn)
    with db.connect() as conn, transaction(conn, token()):
        copy(conn)
    assert rows(db, shop) == [(1, token().job_id, "copied")]


@MODES
def test_what_cascades_without_a_guard_is_refused(db, shop, token, column):
    """A cascade into a protected table from one that is not, by DELETE, UPDATE and TRUNCATE."""
    fill(db, shop, token)
    protect(db.admin, f"{shop}.lines", job_id=column)
    for statement in ("delete from {}.orders where id = 1", "update {}.orders set id = 9 where id = 1"):
        with db.connect() as conn, pytest.raises(psycopg.Error, match=r"\.lines without a fencing token"):
            conn.execute(statement.format(shop))
    with db.connect() as conn, pytest.raises(psycopg.Error, match=r"TRUNCATE on \w+\.lines without"):
        conn.execute(f"truncate {shop}.orders cascade")
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        conn.execute(f"delete from {shop}.orders where id = 1")
    assert rows(db, shop, "lines") == [(2, "another", 2)]
    if column:
        with db.connect() as conn, pytest.raises(JobMismatch, match='"another"'), transaction(conn, token()):
            conn.execute(f"delete from {shop}.orders where id = 2")


def test_truncate_takes_the_rows_of_all_jobs(db, shop, token):
    """A guard lets its transaction empty a table, but not one whose rows belong to jobs."""
    fill(db, shop, token)
    db.arm(token())
    protect(db.admin, f"{shop}.plain")
    protect(db.admin, f"{shop}.lines", job_id="job")
    with db.connect() as conn, transaction(conn, token()):
        conn.execute(f"truncate {shop}.plain")
    with (
        db.connect() as conn,
        pytest.raises(JobMismatch, match="touches every job"),
        transaction(conn, token()),
    ):
        conn.execute(f"truncate {shop}.lines")
    assert (len(rows(db, shop, "plain")), len(rows(db, shop, "lines"))) == (0, 2)


FOREIGN = {
    "insert": "insert into {s}.orders values (3, 'another', 'new')",
    "update": "update {s}.orders set note = 'new' where id = 2",
    "one of several": "update {s}.orders set note = 'new'",
    "give away": "update {s}.orders set job = 'another' where id = 1",
    "take over": "update {s}.orders set job = '{job}' where id = 2",
    "delete": "delete from {s}.orders where id = 2",
    "upsert": "insert into {s}.orders values (2, '{job}', 'x')"
    " on conflict (id) do update set job = excluded.job",
    "view": "delete from {s}.open_orders where id = 2",
    "no job": "insert into {s}.orders values (3, null, 'new')",
    "another case": "insert into {s}.orders values (3, upper('{job}'), 'new')",
    "blank": "insert into {s}.orders values (3, '{job} ', 'new')",
    "part": "insert into {s}.orders values (3, left('{job}', -1), 'new')",
    "entry": "insert into {s}.orders values (3, E'{job}\\t{generation}', 'new')",
    "entries": "insert into {s}.orders values (3, E'{job}\\t{generation}\\t{owner}\\n{job}', 'new')",
    "empty": "insert into {s}.orders values (3, '', 'new')",
}


@pytest.mark.parametrize("write", FOREIGN)
def test_a_row_of_another_job_is_refused(db, shop, token, holder, write):
    """Whether it is another's before, after, or is nobody's: SF004, JobMismatch, and nothing is written."""
    fill(db, shop, token)
    protect(db.admin, f"{shop}.orders", job_id="job")
    db.arm(token())
    before, mine = rows(db, shop), token()
    statement = FOREIGN[write].format(s=shop, job=mine.job_id, generation=mine.generation, owner=mine.owner)
    bearer = holder(mine)
    with db.connect() as conn, pytest.raises(JobMismatch) as caught, transaction(conn, bearer):
        conn.execute(statement)
    assert caught.value.token == mine
    if write in {"insert", "update", "one of several", "give away", "take over", "delete", "upsert", "view"}:
        assert caught.value.job_id == "another"
        assert 'a row of job "another"' in str(caught.value)
    assert rows(db, shop) == before
    assert not bearer.heard


def test_each_guarded_job_may_write_its_rows(db, shop, token):
    """A transaction that guards two jobs writes the rows of both, and moves one from one to the other."""
    other = token(job_id=f"{token().job_id}/other")
    fill(db, shop, token)
    protect(db.admin, f"{shop}.orders", job_id="job")
    db.arm(token())
    db.arm(other)
    with db.connect() as conn, transaction(conn, token(), other):
        conn.execute(f"insert into {shop}.orders values (3, %s, 'new')", (other.job_id,))
        conn.execute(f"update {shop}.orders set job = %s where id = 1", (other.job_id,))
    assert [job for _, job, _ in rows(db, shop)] == [other.job_id, "another", other.job_id]


def test_a_stale_owner_is_refused_as_ever(db, shop, token):
    """What passes the triggers is checked at COMMIT."""
    protect(db.admin, f"{shop}.orders", job_id="job")
    db.arm(token())
    with db.connect() as old, pytest.raises(StaleToken), transaction(old, token()):
        old.execute(f"insert into {shop}.orders values (1, %s, 'late')", (token().job_id,))
        db.arm(token(1))
    assert rows(db, shop) == []


@MODES
def test_a_guard_counts_for_its_own_transaction_alone(db, shop, token, column):
    """Not after its COMMIT, not after ROLLBACK TO, not in a savepoint where it was refused, not elsewhere."""
    protect(db.admin, f"{shop}.orders", job_id=column)
    db.arm(token())
    write = f"insert into {shop}.orders values (1, '{token().job_id}', 'unguarded')"
    call = "select sinkfence.guard(%s, %s, %s)"
    mine, later = ((t.job_id, t.generation, t.owner) for t in (token(), token(1)))
    with db.connect() as conn, db.connect() as neighbour:
        with transaction(conn, token()):
            with pytest.raises(psycopg.Error, match="without a fencing token"):
                neighbour.execute(write)
            neighbour.rollback()
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute(write)
        conn.rollback()
        conn.execute("savepoint one")
        conn.execute(call, mine)
        conn.execute("rollback to one")
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute(write)
        conn.rollback()
        conn.execute("savepoint one")
        with pytest.raises(psycopg.Error, match="never armed"):
            conn.execute(call, later)
        conn.execute("rollback to one")
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute(write)
        conn.rollback()
        conn.execute("savepoint one")
        conn.execute(call, mine)
        conn.execute("release one")
        conn.execute(write)
        with translated():
            conn.commit()
    assert len(rows(db, shop)) == 1


def test_rows_are_looked_at_after_all_triggers(db, shop, token):
    """A BEFORE trigger that moves a row to another job doesn't slip it past."""
    db.admin.execute(
        f"""
        create function {shop}.move() returns trigger language plpgsql as
          $$ begin new.job := 'another'; return new; end $$;
        create trigger zzz before insert on {shop}.orders for each row execute function {shop}.move()
        """
    )
    protect(db.admin, f"{shop}.orders", job_id="job")
    db.arm(token())
    with db.connect() as conn, pytest.raises(JobMismatch), transaction(conn, token()):
        conn.execute(f"insert into {shop}.orders values (1, %s, 'moved')", (token().job_id,))


@pytest.mark.parametrize("kind", ["stored", "virtual"])
def test_a_generated_column_says_whose_a_row_is(db, shop, token, kind):
    """A table with a number may be protected by a text that is generated of it."""
    if kind == "virtual" and db.admin.info.server_version < 180000:
        pytest.skip("not run: virtual generated columns came with PostgreSQL 18")
    prefix = f"{token().job_id}-"
    db.admin.execute(
        f"create table {shop}.invoice (id int, job text generated always as ('{prefix}' || id) {kind})"
    )
    protect(db.admin, f"{shop}.invoice", job_id="job")
    mine = token(job_id=f"{prefix}42")
    db.arm(mine)
    with db.connect() as conn, transaction(conn, mine):
        conn.execute(f"insert into {shop}.invoice values (42)")
    other = token(job_id=f"{prefix}43")
    db.arm(other)
    insert, update = f"insert into {shop}.invoice values (43)", f"update {shop}.invoice set id = 85 - id"
    delete = f"delete from {shop}.invoice"
    for bearer, write, wrong in (
        (mine, insert, other),
        (mine, update, other),
        (other, update, mine),
        (other, delete, mine),
    ):
        with db.connect() as conn, pytest.raises(JobMismatch) as refused, transaction(conn, bearer):
            conn.execute(write)
        assert refused.value.job_id == wrong.job_id
        assert f"a row of job {wrong.job_id}" in str(refused.value).replace('"', "")
    assert rows(db, shop, "invoice") == [(42, mine.job_id)]


def triggers(db, shop, table="orders"):
    query = """
        select tgname, tgenabled, tgfoid::regproc::text from pg_trigger
         where tgrelid = %s::regclass and not tgisinternal
    """
    return sorted(db.admin.execute(query, (f"{shop}.{table}",)).fetchall())


@MODES
@pytest.mark.parametrize("warn_only", [False, True])
def test_protecting_again_locks_nothing(db, shop, column, warn_only):
    """Where all is as it should be, a repetition waits for nobody, and changes nothing."""
    protect(db.admin, f"{shop}.orders", job_id=column, warn_only=warn_only)
    before = triggers(db, shop)
    with db.connect() as conn:
        protect(conn, f"{shop}.orders", job_id=column, warn_only=warn_only)
        locks = conn.execute(
            "select mode from pg_locks where pid = pg_backend_pid() and relation = %s::regclass",
            (f"{shop}.orders",),
        ).fetchall()
        assert {mode for (mode,) in locks} <= {"AccessShareLock"}
    assert triggers(db, shop) == before


def test_protecting_otherwise_replaces_what_was_there(db, shop, token):
    """Another column, any job, or counting only: the triggers are the new mode's, and no others."""
    fill(db, shop, token)
    db.arm(token())
    with db.connect() as writer:

        def refused(write):
            writer.rollback()
            with pytest.raises(psycopg.Error) as caught:
                writer.execute(write.format(s=shop))
            writer.rollback()
            return caught.value.sqlstate

        protect(db.admin, f"{shop}.orders", job_id="job")
        assert len(triggers(db, shop)) == 5
        protect(db.admin, f"{shop}.orders", job_id="note")
        guard(writer, token())
        assert refused("delete from {s}.orders where id = 1") == "SF002"  # the guard's transaction was ended
        with pytest.raises(JobMismatch, match='"old"'), transaction(writer, token()):
            writer.execute(f"delete from {shop}.orders where id = 1")
        protect(db.admin, f"{shop}.orders", warn_only=True)
        assert {function for *_, function in triggers(db, shop)} == {"sinkfence.count_write"}
        writer.execute(f"update {shop}.orders set note = 'counted'")
        writer.commit()
        protect(db.admin, f"{shop}.orders")
        assert {function for *_, function in triggers(db, shop)} == {"sinkfence.refuse_write"}
        assert refused("delete from {s}.orders where id = 1") == "SF002"
        with transaction(writer, token()):
            writer.execute(f"delete from {shop}.orders where id = 2")


def test_no_write_slips_in_between_two_modes(db, shop, token):
    """A writer that comes while the mode is changed waits, and meets the new one."""
    protect(db.admin, f"{shop}.orders", warn_only=True)
    with db.connect() as changing, db.connect() as old, ThreadPoolExecutor() as threads:
        changing.execute("select 1")
        protect(changing, f"{shop}.orders", job_id="job")
        late = threads.submit(old.execute, f"insert into {shop}.orders values (1, 'x', 'late')")
        db.wait_until_blocked()
        changing.commit()
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            late.result()


def test_a_mode_is_not_changed_under_a_reader_that_is_about_to_write(db, shop, token):
    """It waits for who has read, with all of its lock: to take more of it later would be a deadlock."""
    protect(db.admin, f"{shop}.orders", warn_only=True)
    with db.connect() as reader, db.connect() as changing, ThreadPoolExecutor() as threads:
        reader.execute(f"select * from {shop}.orders")
        changing.execute("select 1")
        done = threads.submit(protect, changing, f"{shop}.orders")
        db.wait_until_blocked()
        reader.execute(f"insert into {shop}.orders values (1, 'x', 'in time')")
        reader.commit()
        done.result()
    assert len(rows(db, shop)) == 1


def test_protecting_at_once_is_harmless(db, shop):
    """Two at the same time: both succeed."""

    def one(_):
        with db.connect() as conn:
            protect(conn, f"{shop}.orders", job_id="job")

    with ThreadPoolExecutor() as threads:
        list(threads.map(one, range(4)))
    assert len(triggers(db, shop)) == 5


def test_a_disabled_trigger_is_enabled_again(db, shop):
    """DISABLE TRIGGER is mended by protecting again; ENABLE ALWAYS is left as it is."""
    protect(db.admin, f"{shop}.orders", job_id="job")
    db.admin.execute(f"alter table {shop}.orders disable trigger all")
    db.admin.execute(f"alter table {shop}.orders enable always trigger sinkfence_insert")
    protect(db.admin, f"{shop}.orders", job_id="job")
    assert sorted(enabled for _, enabled, _ in triggers(db, shop)) == ["A", "O", "O", "O", "O"]


def test_protecting_is_part_of_an_open_transaction(db, shop):
    """The caller commits what it has begun."""
    with db.connect() as conn:
        conn.execute("select 1")
        protect(conn, f"{shop}.orders")
        conn.rollback()
    assert triggers(db, shop) == []


@pytest.mark.parametrize(
    "kind", ["psycopg", "psycopg2", "session", "aio psycopg", "aio session", "aio asyncpg"]
)
def test_every_kind_of_connection_protects(db, shop, token, kind):
    """Like installing, it goes over any of them, and is committed where no transaction was open."""
    table = f"{shop}.orders"

    async def asynchronous():
        if kind == "aio psycopg":
            async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
                await aio.protect(conn, table, job_id="job")
            return
        async with db.async_engine(kind.split()[1].replace("session", "psycopg")) as engine:
            async with sa_aio.AsyncSession(engine) if "session" in kind else engine.connect() as conn:
                await aio.protect(conn, table, job_id="job")

    if kind.startswith("aio"):
        db.run(asynchronous())
    elif kind == "session":
        with db.engine() as engine, orm.Session(engine) as session:
            protect(session, table, job_id="job")
    else:
        with db.engine(kind) as engine, engine.connect() as conn:
            protect(conn, table, job_id="job")
    assert len(triggers(db, shop)) == 5
    with db.engine() as engine, engine.connect() as conn, pytest.raises(sa.exc.DBAPIError) as caught:
        conn.execute(sa.text(f"insert into {table} values (1, 'x', 'raw')"))
    assert isinstance(refusal(caught.value), MissingToken)


UNFIT = {
    "open_orders": "is no table",
    "copied": "is no table",
    "orders_pkey": "is no table",
    "remote": "a foreign table",
    "with_remote": "a foreign table",
    "part": "a partition",
}


@pytest.mark.parametrize("table", UNFIT)
def test_what_cannot_be_made_safe_is_refused(db, shop, table):
    """Views, indexes, foreign tables, also as a part of another, and a partition by itself."""
    db.admin.execute(
        f"""
        create foreign data wrapper {shop}; create server {shop} foreign data wrapper {shop};
        create foreign table {shop}.remote (id int) server {shop};
        create table {shop}.with_remote (id int, job text) partition by range (id);
        create foreign table {shop}.far partition of {shop}.with_remote default server {shop};
        create table {shop}.whole (id int, job text) partition by range (id);
        create table {shop}.part partition of {shop}.whole for values from (0) to (9);
        create materialized view {shop}.copied as select 1
        """
    )
    with pytest.raises(NotEnforced, match=UNFIT[table]):
        protect(db.admin, f"{shop}.{table}")
    db.admin.execute(f"drop foreign data wrapper {shop} cascade")


def test_other_tables_that_cannot_be_protected(db, shop):
    """A temporary one, one of sinkfence itself, one of the system, one that isn't there."""
    with db.connect() as conn:
        conn.execute("create temp table mine (id int)")
        with pytest.raises(NotEnforced, match="a temporary table"):
            protect(conn, "mine")
    with pytest.raises(NotEnforced, match="sinkfence itself"):
        protect(db.admin, "sinkfence.mark")
    with pytest.raises(SchemaMismatch, match="permission denied"):
        protect(db.admin, "pg_class")
    for missing in (f"{shop}.nothing", "orders", "no such.name", "a..b", "a.b.c", "", "1"):
        with pytest.raises((SchemaMismatch, ValueError)):
            protect(db.admin, missing)


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        ("varchar(50)", True),
        ("{s}.code", True),
        ("char(60)", False),
        ("name", False),
        ("int", False),
        ("uuid", False),
    ],
)
def test_a_column_must_be_able_to_hold_a_job_id(db, shop, token, kind, fits):
    """Text, varchar and domains of them are compared bytewise; what loses or pads anything is refused."""
    db.admin.execute(f"create domain {shop}.short as varchar(50); create domain {shop}.code as {shop}.short")
    db.admin.execute(f"create table {shop}.t (id int, j {kind.format(s=shop)})")
    if not fits:
        with pytest.raises(SchemaMismatch, match="GENERATED ALWAYS AS"):
            protect(db.admin, f"{shop}.t", job_id="j")
        return
    protect(db.admin, f"{shop}.t", job_id="j")
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        conn.execute(f"insert into {shop}.t values (1, %s)", (token().job_id,))
    with db.connect() as conn, pytest.raises(JobMismatch), transaction(conn, token()):
        conn.execute(f"insert into {shop}.t values (1, %s)", (token().job_id.upper(),))


def test_a_collation_that_ignores_case_makes_no_two_jobs_one(db, shop, token):
    """Under a nondeterministic collation, ids are compared bytewise all the same."""
    try:
        loose = "provider = icu, locale = 'und-u-ks-level2', deterministic = false"
        db.admin.execute(f"create collation {shop}.loose ({loose})")
    except psycopg.Error:
        pytest.skip("not run: this server is built without ICU")
    db.admin.execute(f"create table {shop}.t (id int, j text collate {shop}.loose)")
    protect(db.admin, f"{shop}.t", job_id="j")
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        conn.execute(f"insert into {shop}.t values (1, %s)", (token().job_id,))
    with db.connect() as conn, pytest.raises(JobMismatch), transaction(conn, token()):
        conn.execute(f"update {shop}.t set j = %s", (token().job_id.upper(),))


ODD = [
    '"Odd ""name"" 1"',
    '"it\'s"',
    '"a.b"',
    '"%s %(x)s :x $1"',
    '"back\\slash"',
    '"drop table x; --"',
    '"\u00e9\u7532"',
]


@pytest.mark.parametrize("name", ODD)
def test_names_are_names(db, shop, token, name):
    """Quotes, dots, placeholders and SQL in the names of schema, table and column stay what they are."""
    plain = name[1:-1].replace('""', '"')
    literal = name.replace("%", "%%")
    table = f"{literal}.{literal}"
    db.arm(token())
    db.admin.execute(
        f"create schema {literal}; create table {table} (id int, {literal} text)".replace("%%", "%")
    )
    try:
        for warn_only in (True, False):
            protect(db.admin, f"{name}.{name}", job_id=plain, warn_only=warn_only)
            protect(db.admin, f"{name}.{name}", job_id=plain, warn_only=warn_only)
            with db.connect() as conn, transaction(conn, token()):
                conn.execute(f"insert into {table} values (1, %s)", (token().job_id,))
        with db.connect() as conn, pytest.raises(JobMismatch) as caught, transaction(conn, token()):
            conn.execute(f"insert into {table} values (1, %s)", ("another",))
        assert caught.value.job_id == "another"
        # With its quotes the column's name is another one.
        with pytest.raises(SchemaMismatch, match="no column"):
            protect(db.admin, f"{name}.{name}", job_id=name)
    finally:
        db.admin.execute(f"drop schema {name} cascade")


@pytest.mark.parametrize(
    "name", ["orders; drop table {s}.plain", "{s}.orders'", '{s}."', "{s}.orders --", "a\0b", ""]
)
def test_names_that_are_none_do_nothing(db, shop, name):
    """What can't be read as a name is an error, and nothing is run or protected."""
    for arguments in ((name.format(s=shop), None), (f"{shop}.orders", name.format(s=shop))):
        with pytest.raises((SchemaMismatch, ValueError, psycopg.Error)):
            protect(db.admin, arguments[0], job_id=arguments[1])
    assert triggers(db, shop) == []
    assert rows(db, shop, "plain") == []


def test_nonsense_is_refused_before_it_is_sent(db):
    """Empty names and NUL are no names, and a connection string is no connection."""
    with pytest.raises(TypeError, match="expected one of"):
        protect(db.dsn, "orders")
    with db.connect() as closed:
        pass
    for table, column in (("", None), ("a\0", None), ("orders", ""), ("orders", "a\0")):
        with pytest.raises(ValueError, match="no empty string"):
            protect(closed, table, job_id=column)
