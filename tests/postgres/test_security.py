"""What a hostile neighbour, name or job id can do to the marks, or past a protected table: nothing."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

import psycopg
import pytest

from sinkfence.errors import JobMismatch, SchemaMismatch, StaleToken
from sinkfence_postgres import doctor, install, protect, transaction

SHADOWS = """
    create schema {evil};
    create function {evil}.starts_with(text, text) returns boolean language sql as 'select true';
    create function {evil}.strpos(text, text) returns int language sql as 'select 1';
    create function {evil}.current_setting(text, boolean) returns text language sql as 'select ''forged''';
    create function {evil}.pg_current_xact_id_if_assigned() returns xid8
      language sql as 'select ''1''::xid8';
    create function {evil}.to_regclass(text) returns regclass language sql as 'select ''entry''::regclass';
    create function {evil}.format(text, variadic text[]) returns text language sql as 'select ''drop x''';
    create function {evil}.yes(text, text) returns boolean language sql as 'select true';
    create operator {evil}.= (leftarg = text, rightarg = text, function = {evil}.yes);
    create function {evil}.many(int, int) returns boolean language sql as 'select true';
    create operator {evil}.> (leftarg = int, rightarg = int, function = {evil}.many);
    create operator {evil}.= (leftarg = int, rightarg = int, function = {evil}.many);
    create function {evil}.glue(text, text) returns text language sql as 'select ''glued''';
    create operator {evil}.|| (leftarg = text, rightarg = text, function = {evil}.glue);
    create temp table pg_class (oid oid, relkind "char");
    create temp table pg_trigger (oid oid);
    create function pg_temp.counter(regclass) returns regclass language sql as 'select null';
    create domain pg_temp.text as pg_catalog.text check (false);
    create domain pg_temp.regclass as pg_catalog.regclass check (false);
    set search_path = pg_temp, {evil}, pg_catalog, sinkfence, public;
"""


def test_shadowed_names_change_nothing(own_db, token):
    """Functions, operators, types and tables put before the system's are not used."""
    own_db.admin.execute("create table public.orders (id int, job text)")
    own_db.arm(token())
    write = "insert into public.orders values (1, %s::pg_catalog.text)"
    with own_db.connect(autocommit=True) as conn:
        conn.execute(SHADOWS.format(evil="evil"))
        for job_id, warn_only in ((None, True), ("job", True), (None, False), ("job", False)):
            protect(conn, "public.orders", job_id=job_id, warn_only=warn_only)
            protect(conn, "public.orders", job_id=job_id, warn_only=warn_only)
            if warn_only:
                conn.execute(write, ("counted",))
            else:
                with pytest.raises(psycopg.Error, match="without a fencing token"):
                    conn.execute(write, ("raw",))
            with transaction(conn, token()):
                conn.execute(write, (token().job_id,))
        with pytest.raises(JobMismatch), transaction(conn, token()):
            conn.execute(write, ("another",))
        assert "broken" not in {each.grade for each in doctor(conn).findings}
        with pytest.raises(StaleToken), transaction(conn, token()):
            own_db.arm(token(1))
        install(conn)
    assert own_db.admin.execute("select count(*) from public.orders").fetchone() == (6,)


def test_every_function_has_a_fixed_search_path(db):
    """Whoever it runs as: no caller's search_path decides what a name in it means."""
    loose = db.admin.execute(
        "select proname from pg_proc where pronamespace = 'sinkfence'::regnamespace"
        " and ('search_path=pg_catalog, pg_temp' = any (proconfig)) is not true"
        " and proname <> 'schema_version'"
    )
    assert loose.fetchall() == []


PUBLIC = {
    "confirm",
    "schema_version",
    "refuse_write",
    "count_write",
    "counter",
    "unprotected",
    "protected",
    "protect",
}


def test_what_everybody_may_do_is_this(db):
    """Functions that run with the caller's own rights, no table, and no right to create."""
    functions = db.admin.execute(
        "select proname, prosecdef from pg_proc, aclexplode(proacl)"
        " where pronamespace = 'sinkfence'::regnamespace and grantee = 0"
    )
    assert set(functions.fetchall()) == {(name, False) for name in PUBLIC}
    tables = (
        "select relname from pg_class, aclexplode(relacl)"
        " where relnamespace = 'sinkfence'::regnamespace and grantee = 0"
    )
    assert db.admin.execute(tables).fetchall() == []
    schema = (
        "select privilege_type from pg_namespace, aclexplode(nspacl)"
        " where nspname = 'sinkfence' and grantee = 0"
    )
    assert db.admin.execute(schema).fetchall() == [("USAGE",)]


@pytest.fixture
def writer(own_db):
    """The dsn of a role that may write to `orders`, which somebody else owns and has protected."""
    name = f"app_{secrets.token_hex(6)}"
    own_db.admin.execute(
        f"""
        create role {name} login password 'secret' in role sinkfence_writer;
        create table orders (id int, job text);
        grant select, insert, update, delete, truncate on orders to {name};
        create schema {name} authorization {name}
        """
    )
    protect(own_db.admin, "orders", job_id="job")
    protect(own_db.admin, "entry", warn_only=True)
    parts = urlsplit(own_db.dsn)
    yield parts._replace(netloc=f"{name}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    own_db.admin.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.mark.parametrize(
    "forbidden",
    [
        "alter table orders disable trigger all",
        "alter table orders disable trigger sinkfence_insert",
        "drop trigger sinkfence_statement on orders",
        "create trigger x before insert on orders execute function suppress_redundant_updates_trigger()",
        "create rule x as on insert to orders do instead nothing",
        "create table part partition of orders default",
        "set session_replication_role = replica",
        "select sinkfence.protect('orders', null, true)",
        "select sinkfence.protect('entry')",
        "select setval(sinkfence.counter('entry'), 1)",
        "insert into sinkfence.mark values ('a', 1, 'a')",
        "create or replace function sinkfence.schema_version() returns int language sql as 'select 3'",
        "alter function sinkfence.refuse_write() set search_path = public",
        "select sinkfence.judge('a', 1, 'a', 1, 'a')",
        "set role sinkfence_owner",
        "grant sinkfence_owner to current_user",
    ],
)
def test_a_writer_cannot_get_out(writer, forbidden):
    """It disables no trigger, changes no mode, resets no count, replaces no function, becomes nobody else."""
    with psycopg.connect(writer) as conn:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType)):
            conn.execute(forbidden)
        conn.rollback()
        with pytest.raises(psycopg.Error, match="without a fencing token"):
            conn.execute("insert into orders values (1, 'x')")


def test_a_writer_gains_nothing_by_our_functions(own_db, writer):
    """Our triggers on a table of its own run as itself, and count in none but its own counter."""
    with psycopg.connect(writer, autocommit=True) as conn:
        name = conn.execute("select current_user").fetchone()[0]
        conn.execute(f"create table {name}.mine (id int, who text default current_user)")
        conn.execute(
            f"create trigger x after insert on {name}.mine"
            " for each row execute function sinkfence.count_write('who')"
        )
        conn.execute(f"insert into {name}.mine values (1)")
        conn.execute(f"alter table {name}.mine disable trigger x")
        protect(conn, f"{name}.mine", job_id="who", warn_only=True)
        conn.execute(f"insert into {name}.mine values (2)")
        with pytest.raises(SchemaMismatch, match="only its owner"):
            protect(conn, "orders")
    counts = own_db.admin.execute(
        "select relation, misses from sinkfence.protected() order by relation"
    ).fetchall()
    assert counts == [(f"{name}.mine", 1), ("public.entry", 0), ("public.orders", None)]


INJECTIONS = [
    "'; drop table orders; --",
    "a'||chr(10)||'b",
    "%s %(x)s %% %I :x $1",
    '"quoted" \\ back\\slash \\t \\x00',
    '{"json": [1]}',
    "NULL",
    "e\u0301 \u200b \U0001f512 \u2028",
    "x" * 200,
    "\u00e9" * 100,
]


@pytest.mark.parametrize("job_id", INJECTIONS)
def test_job_ids_in_rows_are_data(own_db, token, job_id):
    """Whatever a job is called, its rows are its own, and a refusal says whose a row is."""
    own_db.admin.execute("create table orders (id int, job text)")
    protect(own_db.admin, "orders", job_id="job")
    own_db.arm(token(job_id=job_id, owner=job_id))
    own_db.arm(token())
    mine, other = token(job_id=job_id, owner=job_id), token()
    with own_db.connect() as conn, transaction(conn, mine):
        conn.execute("insert into orders values (1, %s)", (job_id,))
    with own_db.connect() as conn, pytest.raises(JobMismatch) as caught, transaction(conn, other):
        conn.execute("delete from orders")
    assert (caught.value.token, caught.value.job_id) == (other, job_id)
    with own_db.connect() as conn, pytest.raises(JobMismatch) as caught, transaction(conn, mine):
        conn.execute("insert into orders values (1, %s)", (other.job_id,))
    assert (caught.value.token, caught.value.job_id) == (mine, other.job_id)
