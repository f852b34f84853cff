"""From an older version to this one, while clients that know only the older one write."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from sinkfence import SchemaMismatch
from sinkfence_postgres import PostgresSink, doctor, install, installation, protect, refusal, transaction


def of_version(number):
    """The installation script under another version."""
    line = f"version constant integer := {installation.VERSION};"
    assert line in installation.schema()
    return installation.schema().replace(line, f"version constant integer := {number};")


@pytest.fixture
def old_db(dsn):
    """A database with an older version, which lacked a function and had another one's body different."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(of_version(installation.VERSION - 1))
        conn.execute("drop function sinkfence.count_write")
        conn.execute("alter function sinkfence.refuse_write set work_mem = '1MB'")
        conn.execute("create table entry (id bigint generated always as identity, job text, note text)")
    return dsn


def call(conn, function, token):
    conn.execute(f"select sinkfence.{function}(%s, %s, %s)", (token.job_id, token.generation, token.owner))


def catalog(dsn):
    """All that is in the schema, as the system's catalogs have it: functions, tables, triggers, rights."""
    queries = (
        "select p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proacl::text,"
        " p.proowner::regrole::text from pg_proc p where pronamespace = 'sinkfence'::regnamespace",
        "select relname::text, relkind::text, relpersistence::text, relacl::text, relowner::regrole::text,"
        " reloptions::text from pg_class where relnamespace = 'sinkfence'::regnamespace",
        "select attrelid::regclass::text, attname::text, format_type(atttypid, atttypmod), attnotnull::text,"
        " attcollation::regcollation::text from pg_attribute where attnum > 0 and attrelid in"
        " (select oid from pg_class where relnamespace = 'sinkfence'::regnamespace)",
        "select pg_get_triggerdef(oid), tgenabled::text from pg_trigger where not tgisinternal",
        "select nspacl::text from pg_namespace where nspname = 'sinkfence'",
    )
    with psycopg.connect(dsn) as conn:
        return [{repr(sorted_acl(row)) for row in conn.execute(query)} for query in queries]


def sorted_acl(row):
    """The row, with the entries of its access lists in a fixed order, not in that of their granting."""
    return [
        sorted(value[1:-1].split(",")) if value and value.startswith("{") and "=" in value else value
        for value in row
    ]


def test_an_upgraded_schema_is_the_same_as_a_new_one(old_db, postgres_server):
    """Nothing of the older version is left over, and nothing is missing: the catalogs say the same."""
    with psycopg.connect(old_db) as conn:
        install(conn)
        assert conn.execute("select sinkfence.schema_version()").fetchone() == (installation.VERSION,)
    fresh = postgres_server.create_database()
    with psycopg.connect(fresh) as conn:
        install(conn)
    for upgraded, new in zip(catalog(old_db), catalog(fresh), strict=True):
        assert upgraded ^ new == set()
    postgres_server.drop_database(fresh)


def test_old_clients_write_before_during_and_after(old_db, token):
    """What is guarded before stays open across the upgrade: the newest commits, the stale doesn't."""
    later = token(1, job_id=f"{token().job_id}/later")
    with (
        psycopg.connect(old_db) as newest,
        psycopg.connect(old_db) as stale,
        psycopg.connect(old_db) as locked,
        psycopg.connect(old_db, autocommit=True) as arming,
        psycopg.connect(old_db) as upgrading,
    ):
        for one in (token(), token(job_id="two"), token(job_id="three")):
            call(arming, "arm", one)
        call(newest, "guard", token())
        newest.execute("insert into entry (note) values ('newest')")
        call(stale, "guard", token(job_id="two"))
        stale.execute("insert into entry (note) values ('stale')")
        locked.execute("select sinkfence.guard('three', %s, %s, true)", (token().generation, token().owner))
        locked.execute("insert into entry (note) values ('locked')")
        upgrading.execute("select 1")
        install(upgrading)  # nobody waits: functions are replaced at its commit
        call(arming, "arm", token(1, job_id="two"))
        newest.execute("insert into entry (note) values ('newest, during')")
        upgrading.commit()
        newest.commit()
        locked.commit()
        with pytest.raises(psycopg.Error) as caught:
            stale.commit()
        assert caught.value.sqlstate == "SF001"
        call(arming, "arm", later)
        call(newest, "guard", later)
        newest.execute("insert into entry (note) values ('after')")
        newest.commit()
        notes = arming.execute("select note from entry order by id").fetchall()
        assert [note for (note,) in notes] == ["newest", "locked", "newest, during", "after"]
        assert arming.execute("select count(*) from sinkfence.mark").fetchone() == (4,)


def test_old_clients_meet_a_protected_table(old_db, token):
    """A guard that began before the upgrade counts for the triggers after it; no guard does not."""
    PostgresSink(old_db).arm(token())
    with psycopg.connect(old_db) as old, psycopg.connect(old_db) as raw, psycopg.connect(old_db) as admin:
        call(old, "guard", token())
        install(admin)
        protect(admin, "entry", job_id="job")
        old.execute("insert into entry (job) values (%s)", (token().job_id,))
        old.commit()
        with pytest.raises(psycopg.Error) as caught:
            raw.execute("insert into entry (job) values (%s)", (token().job_id,))
        assert caught.value.sqlstate == "SF002"


def test_upgrades_at_once_under_load(old_db, token):
    """Four upgrades while four old clients write and a successor arms: nothing fails or is lost."""
    PostgresSink(old_db).arm(token())
    stop = threading.Event()

    def write(number):
        with psycopg.connect(old_db) as conn:
            written = 0
            while not stop.is_set():
                try:
                    call(conn, "guard", token())
                    conn.execute("insert into entry (note) values (%s)", (str(number),))
                    conn.commit()
                    written += 1
                except psycopg.Error as error:
                    if error.sqlstate == "SF001":
                        return written
                    raise
            return written

    def upgrade(_):
        with psycopg.connect(old_db) as conn:
            install(conn)

    with ThreadPoolExecutor(8) as threads:
        writers = [threads.submit(write, number) for number in range(4)]
        try:
            list(threads.map(upgrade, range(4)))
            PostgresSink(old_db).arm(token(1))
        finally:
            stop.set()
        counts = [writer.result() for writer in writers]
    with psycopg.connect(old_db) as conn:
        assert conn.execute("select count(*) from entry").fetchone() == (sum(counts),)
        assert "broken" not in {each.grade for each in doctor(conn).findings}
        with pytest.raises(psycopg.Error) as caught:
            call(conn, "guard", token())
        assert refusal(caught.value).mark == token(1).generation
        conn.rollback()
        with transaction(conn, token(1)):
            pass


def test_an_old_library_leaves_a_new_schema_alone(dsn):
    """This version's script refuses to be installed over a later one."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(of_version(installation.VERSION + 1))
        with pytest.raises(SchemaMismatch, match=f"has version {installation.VERSION + 1}"):
            install(conn)
