"""What `install` puts into a database, who may touch it, and what a hostile neighbour can do about it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_aio

import sinkfence_postgres
from sinkfence.errors import JobMismatch, NotEnforced, SchemaMismatch, SinkfenceError, StaleToken
from sinkfence_postgres import PostgresSink, aio, guard, install, once, protect, refusal, transaction
from sinkfence_postgres.installation import schema


def sqlalchemy_install(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.connect() as conn:
        install(conn)
    engine.dispose()


async def async_install(url: str) -> None:
    engine = sa_aio.create_async_engine(url)
    async with engine.connect() as conn:
        await aio.install(conn)
    await engine.dispose()


async def psycopg_async_install(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await aio.install(conn)


def test_installing_by_every_driver_and_again_loses_no_mark(dsn, token):
    """Every kind of connection can install; a repetition changes nothing and keeps the marks."""
    url = dsn.replace("postgresql://", "postgresql+{}://", 1)
    sqlalchemy_install(url.format("psycopg"))
    PostgresSink(dsn).arm(token())
    sqlalchemy_install(url.format("psycopg2"))
    asyncio.run(async_install(url.format("psycopg")))
    asyncio.run(async_install(url.format("asyncpg")))
    asyncio.run(psycopg_async_install(dsn))
    with psycopg.connect(dsn, autocommit=True) as conn:
        install(conn)
        rows = conn.execute("select job_id, max_generation, owner from sinkfence.mark").fetchall()
    assert rows == [(token().job_id, token().generation, token().owner)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_client_of_another_encoding_installs(dsn, encoding):
    """The script is ASCII: a session whose client_encoding is not UTF8 can send it."""
    assert schema().isascii()
    with psycopg.connect(dsn, client_encoding=encoding) as conn:
        install(conn)


def test_a_session_in_which_a_backslash_escapes_does_it_all(dsn, token):
    """standard_conforming_strings=off changes nothing: what it installs and protects is what others do."""
    create = r'create table entry (id int, "a \ job" text)'
    off = f"{dsn}?options=-cstandard_conforming_strings%3Doff%20-cescape_string_warning%3Don"
    said: list[str | None] = []
    with psycopg.connect(off, autocommit=True) as old, psycopg.connect(dsn, autocommit=True) as conn:
        old.add_notice_handler(lambda notice: said.append(notice.message_primary))
        conn.execute(create)
        install(old)
        for one in (old, conn, old):
            protect(one, "entry", job_id=r"a \ job")
            assert one.execute("select relation, job_id, lacks from sinkfence.protected()").fetchall() == [
                ("public.entry", r"a \ job", None)
            ]
        PostgresSink(off).arm(token())
        with transaction(old, token()):
            old.execute("insert into entry values (1, %s)", (token().job_id,))
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="malformed token"):
            old.execute("select sinkfence.arm(%s, 1, 'o')", ("a\x7f",))
        with pytest.raises(JobMismatch, match="touches a row of job"), transaction(old, token()):
            old.execute("insert into entry values (1, 'other')")
    assert said == []


def test_installing_at_once_is_harmless(dsn, token):
    """Four installers and a writer at the same time: all succeed, the mark stays."""
    with psycopg.connect(dsn) as conn:
        install(conn)
    PostgresSink(dsn).arm(token())

    def one(_: int) -> None:
        with psycopg.connect(dsn) as conn:
            install(conn)

    with ThreadPoolExecutor() as threads, psycopg.connect(dsn) as writer, transaction(writer, token()):
        list(threads.map(one, range(4)))  # a guarded transaction that is open does not keep them waiting
    with psycopg.connect(dsn) as conn:
        assert conn.execute("select count(*) from sinkfence.mark").fetchone() == (1,)


def test_installing_in_an_open_transaction_leaves_the_commit_to_the_caller(dsn):
    """In a transaction of the caller's, nothing is there until the caller commits; settings are as before."""
    with psycopg.connect(dsn) as conn:
        conn.execute("set search_path = public")
        install(conn)
        assert conn.execute("show search_path").fetchone() == ("public",)
        assert conn.execute("select current_user = session_user").fetchone() == (True,)
        conn.rollback()
        assert conn.execute("select to_regnamespace('sinkfence')").fetchone() == (None,)


TRIGGERS = """
    select tgrelid::regclass::text, tgname, tgenabled from pg_trigger
     where tgrelid::regclass::text like 'sinkfence.%' and not tgisinternal order by tgname
"""


@pytest.mark.parametrize(
    "break_it",
    [
        "alter table sinkfence.{table} disable trigger all; alter table sinkfence.{table} enable trigger all",
        "alter table sinkfence.{table} disable trigger user",
        "drop trigger if exists seal on sinkfence.{table};"
        " drop trigger if exists keep_mark on sinkfence.{table};"
        " drop trigger if exists keep_marks on sinkfence.{table}",
    ],
    ids=["as pg_restore leaves them", "disabled", "dropped"],
)
def test_installing_again_mends_the_triggers(own_db, token, break_it):
    """Triggers that were disabled, made ordinary or dropped are as they were after another installation."""
    own_db.arm(token())
    before = own_db.admin.execute(TRIGGERS).fetchall()
    assert [enabled for _, _, enabled in before] == ["A", "A", "A"]
    for table in ("mark", "sealed"):
        own_db.admin.execute(break_it.format(table=table))
    assert own_db.admin.execute(TRIGGERS).fetchall() != before
    install(own_db.admin)
    assert own_db.admin.execute(TRIGGERS).fetchall() == before
    with own_db.connect() as old, pytest.raises(StaleToken), transaction(old, token()):
        old.execute("insert into entry (note) values ('late')")
        own_db.arm(token(1))


def test_installing_again_waits_for_nobody(own_db, token):
    """Beside a step under way it goes through, and locks no table that others use until its commit."""
    own_db.arm(token())
    locks = (
        "select l.relation::regclass::text, l.mode from pg_locks l where l.pid = pg_backend_pid()"
        " and l.relation is not null and l.mode not in ('AccessShareLock', 'RowExclusiveLock')"
    )
    with own_db.connect() as working, transaction(working, token()):
        once(working, token(), "step", lambda: None)
        with own_db.connect() as conn:
            conn.execute("set lock_timeout = '10s'")
            install(conn)
            assert conn.execute(locks).fetchall() == []
            conn.rollback()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_installing_in_a_snapshot_is_refused(own_db, isolation):
    """In an open transaction that would look at what was there before the wait; its own is READ COMMITTED."""
    with own_db.connect() as conn:
        conn.execute(f"set session characteristics as transaction isolation level {isolation}")
        conn.commit()
        conn.execute("select 1")
        with pytest.raises(NotEnforced, match=isolation):
            install(conn)
        conn.rollback()
        install(conn)
        asyncio.run(psycopg_async_install(own_db.dsn))


def test_a_schema_of_somebody_else_is_not_filled(dsn):
    """In a schema `sinkfence` of another role, that role might change the marks."""
    with psycopg.connect(dsn) as conn:
        conn.execute("create schema sinkfence create table mark (job_id text)")
        conn.commit()
        with pytest.raises(SchemaMismatch, match="belongs to role"):
            install(conn)


@pytest.fixture
def role(postgres_server, dsn):
    """A role of its own, and the dsn to log in with it."""
    name = f"app_{urlsplit(dsn).path[-8:]}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create role {name} login password 'secret'")
        yield (
            name,
            urlsplit(dsn)._replace(netloc=f"{name}:secret@{urlsplit(dsn).netloc.split('@')[1]}").geturl(),
        )
        admin.execute(f"drop schema if exists sinkfence cascade; drop owned by {name}")
        admin.execute(f"drop role {name}")


def test_an_ordinary_owner_of_the_database_can_install(dsn, role, token):
    """No superuser is needed: CREATE on the database and being a member of sinkfence_owner are enough."""
    name, login = role
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"grant create on database {urlsplit(dsn).path[1:]} to {name}")
        # Roles belong to the cluster, and these were made by a superuser: grant what their maker would have.
        sinkfence_postgres.install(admin)
        admin.execute("drop schema sinkfence cascade")
        admin.execute(f"grant sinkfence_owner to {name}")
    with psycopg.connect(login) as conn:
        install(conn)
        install(conn)
    PostgresSink(login).arm(token())
    with psycopg.connect(login) as conn, transaction(conn, token()):
        pass


def test_a_role_without_the_grant_is_told_which(own_db, role, token):
    """A role that is no sinkfence_writer gets one line that says what to grant."""
    _, login = role
    with pytest.raises(SchemaMismatch, match="GRANT sinkfence_writer"):
        PostgresSink(login).arm(token())
    with psycopg.connect(login) as conn, pytest.raises(SchemaMismatch, match="GRANT sinkfence_writer"):
        guard(conn, token())


def test_a_writer_can_call_and_cannot_touch(own_db, role, token):
    """sinkfence_writer can arm and guard, and neither touch the tables nor call what is internal."""
    name, login = role
    with own_db.connect() as admin:
        admin.execute(f"grant sinkfence_writer to {name}; grant insert, select on entry to {name}")
    PostgresSink(login).arm(token())
    with psycopg.connect(login) as conn, transaction(conn, token()):
        conn.execute("insert into entry (note) values ('by the writer')")
    assert own_db.notes() == ["by the writer"]
    for forbidden in (
        "select * from sinkfence.mark",
        "update sinkfence.mark set max_generation = 1",
        "insert into sinkfence.mark values ('x', 1, 'x')",
        "delete from sinkfence.mark",
        "truncate sinkfence.mark",
        "select * from sinkfence.sealed",
        "delete from sinkfence.sealed",
        "truncate sinkfence.sealed",
        "alter table sinkfence.sealed disable trigger seal",
        "create function sinkfence.evil() returns int language sql as 'select 1'",
        "select sinkfence.lock_and_judge('x', 1, 'x')",
        "select sinkfence.bound_waits()",
        "set role sinkfence_owner",
        "set session_replication_role = replica",
    ):
        with psycopg.connect(login) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(forbidden)


def test_an_eviction_reaches_what_the_same_login_has_opened(own_db, role, token):
    """Sessions belong to who has logged in, also where all of them have gone on as another role."""
    name, login = role
    with own_db.connect(autocommit=True) as admin:
        admin.execute(f"create role {name}_team; grant sinkfence_writer to {name}_team")
        admin.execute(f"alter role {name} noinherit; grant {name}_team to {name}")
        as_team = f"{login}?options=-crole%3D{name}_team"
        sink = PostgresSink(as_team)
        sink.arm(token())
        with psycopg.connect(as_team) as old, pytest.raises(psycopg.OperationalError):
            guard(old, token(), lock=True)
            sink.arm(token(1), evict=True)
            old.commit()
        admin.execute(f"drop owned by {name}_team; drop role {name}_team")


@pytest.mark.parametrize(
    "statement",
    [
        "update sinkfence.mark set max_generation = max_generation - 1 where job_id = %(job)s",
        "update sinkfence.mark set owner = 'another' where job_id = %(job)s",
        "update sinkfence.mark set job_id = 'another' where job_id = %(job)s",
        "update sinkfence.mark set max_generation = 10 ^ 14, job_id = 'another' where job_id = %(job)s",
        "delete from sinkfence.mark where job_id = %(job)s",
        "truncate sinkfence.mark",
        "truncate sinkfence.mark, sinkfence.sealed cascade",
        "merge into sinkfence.mark m using (select 1) s on m.job_id = %(job)s when matched then delete",
        "insert into sinkfence.mark values (%(job)s, 1, '') on conflict (job_id) do update set owner = 'x'",
    ],
)
@pytest.mark.parametrize("replication", ["origin", "replica"])
def test_a_mark_never_goes_back(db, token, statement, replication):
    """Not even a superuser's plain statement lowers, moves, re-owns or removes a mark."""
    db.arm(token())
    with db.connect() as conn:
        conn.execute(f"set session_replication_role = {replication}")
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement, {"job": token().job_id} if "%(job)s" in statement else None)
        assert caught.value.sqlstate == "SF009"
        assert isinstance(refusal(caught.value), SinkfenceError)
    assert db.mark(token().job_id) == (token().generation, token().owner)


def test_raising_a_mark_by_hand_waits_for_writers(db, token):
    """A hand-written UPDATE that raises a mark waits for a transaction that has been checked, like an arm."""
    db.arm(token())
    raise_it = "update sinkfence.mark set max_generation = %s, owner = 'admin' where job_id = %s"
    with db.connect() as writer, db.connect(autocommit=True) as admin, ThreadPoolExecutor() as threads:
        guard(writer, token(), lock=True)
        raising = threads.submit(admin.execute, raise_it, (token(5).generation, token().job_id))
        db.wait_until_blocked()
        writer.commit()
        raising.result()
    assert db.mark(token().job_id) == (token(5).generation, "admin")


def test_a_mark_is_committed_synchronously(db, token):
    """arm() forces synchronous_commit where it is off or local, keeps a stricter one, for its transaction."""
    with db.connect() as conn:
        for step, (setting, during) in enumerate(
            [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
        ):
            conn.execute(f"set session synchronous_commit = {setting}")
            conn.commit()
            arm = (token(step).job_id, token(step).generation, token(step).owner)
            conn.execute("select sinkfence.arm(%s, %s, %s)", arm)
            assert conn.execute("show synchronous_commit").fetchone() == (during,)
            conn.rollback()
            assert conn.execute("show synchronous_commit").fetchone() == (setting,)


def test_a_hostile_search_path_changes_nothing(db, token):
    """Tables, functions, types and operators that shadow the system's own or ours are not used."""
    db.arm(token(1))
    with db.connect() as conn:
        conn.execute(
            """
            create schema evil;
            create function evil.pg_advisory_xact_lock_shared(bigint) returns void language sql as 'select';
            create function evil.starts_with(text, text) returns boolean language sql as 'select true';
            create function evil.unnest(text[]) returns setof text language sql as $$ select 'forged' $$;
            create function evil.bytewise(text, text) returns boolean language sql as 'select true';
            create operator evil.= (leftarg = text, rightarg = text, function = evil.bytewise);
            create function evil.less(bigint, bigint) returns boolean language sql as 'select false';
            create operator evil.< (leftarg = bigint, rightarg = bigint, function = evil.less);
            create operator evil.> (leftarg = bigint, rightarg = bigint, function = evil.less);
            create temp table mark (job_id text, max_generation bigint, owner text);
            create temp table sealed (job_id text, generation bigint, owner text);
            create function pg_temp.lock_key(text) returns bigint language sql as 'select 1';
            create domain pg_temp.text as pg_catalog.text check (false);
            set search_path = pg_temp, evil, pg_catalog, sinkfence;
            """
        )
        conn.commit()
        with pytest.raises(StaleToken):
            guard(conn, token())
        conn.rollback()
        with pytest.raises(StaleToken), transaction(conn, token(1)):
            conn.execute("insert into public.entry (note) values ('late')")
            db.arm(token(2))
        with transaction(conn, token(2)):
            conn.execute("insert into public.entry (note) values ('in time')")
        install(conn)
        conn.execute("drop schema evil cascade")
    assert db.notes() == ["in time"]


INJECTIONS = [
    "'; drop schema sinkfence cascade; --",
    "a'||chr(10)||'b",
    "%(job_id)s %s %% :job_id $1",
    '"quoted" \\ back\\slash',
    "{array,elements}",
    "NULL",
    "e\u0301 \u200b \U0001f512",
    "x" * 200,
    "\u00e9" * 100,
]


@pytest.mark.parametrize("job_id", INJECTIONS)
def test_job_ids_are_data(db, write_some, job_id, token):
    """Quotes, placeholders, array syntax and the longest ids reach the server as they are."""
    mine = token(job_id=job_id, owner=job_id)
    db.arm(mine)
    write_some(mine)
    assert db.mark(job_id) == (mine.generation, job_id)
    stale = token(-1, job_id=job_id)
    with pytest.raises(StaleToken) as caught:
        write_some(stale)
    assert caught.value.token == stale


@pytest.fixture(params=["psycopg", "psycopg2", "asyncpg"])
def write_some(request, db):
    def sync(bearer):
        with db.engine(request.param) as engine, engine.connect() as conn, transaction(conn, bearer):
            pass

    async def asynchronous(bearer):
        async with db.async_engine(request.param) as engine, engine.connect() as conn:
            async with aio.transaction(conn, bearer):
                pass

    return (lambda bearer: db.run(asynchronous(bearer))) if request.param == "asyncpg" else sync


@pytest.mark.parametrize(
    "values",
    [
        ("a\nb", 1, "o"),
        ("a\tb", 1, "o"),
        ("a\x7f", 1, "o"),
        ("a\x85", 1, "o"),
        ("a\x9f", 1, "o"),
        ("", 1, "o"),
        ("x" * 201, 1, "o"),
        ("\u00e9" * 101, 1, "o"),
        (None, 1, "o"),
        ("a", 0, "o"),
        ("a", -1, "o"),
        ("a", 10**15, "o"),
        ("a", None, "o"),
        ("a", 1, ""),
        ("a", 1, "o\n"),
        ("a", 1, None),
    ],
)
@pytest.mark.parametrize("function", ["arm", "guard"])
def test_malformed_tokens_are_refused_in_sql(db, function, values):
    """Clients in other languages meet the same rules for job_id, generation and owner."""
    with db.connect() as conn, pytest.raises(psycopg.errors.InvalidParameterValue, match="malformed token"):
        conn.execute(f"select sinkfence.{function}(%s, %s::bigint, %s)", values)


def test_well_formed_tokens_are_accepted_in_sql(db):
    """The rules refuse control characters only: spaces, other scripts and the limits pass."""
    with db.connect() as conn:
        for values in [("a b\u00a0\u2028", 1, "o"), ("\u7532", 10**15 - 1, "\u00e9" * 100)]:
            conn.execute("select sinkfence.arm(%s, %s, %s)", values)
        conn.rollback()


def test_ids_are_compared_bytewise(db, token):
    """Ids that differ by case, accents' composition or trailing space are different jobs."""
    db.arm(token(3, job_id="caf\u00e9"))
    for other in ("Caf\u00e9", "cafe\u0301", "caf\u00e9 "):
        db.arm(token(job_id=other))
        assert db.mark(other) == (token().generation, token().owner)
