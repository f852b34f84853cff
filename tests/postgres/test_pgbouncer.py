"""Through PgBouncer in transaction mode: each transaction may be on another server process than the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from sinkfence.errors import NotEnforced, StaleToken
from sinkfence_postgres import PostgresSink, guard, once, transaction
from sinkfence_trials.servers.pooler import PGBOUNCER, pgbouncer

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="not run: there is no pgbouncer on the PATH")


@pytest.fixture(scope="module")
def bouncer(shared):
    """A database as seen through PgBouncer, which has one connection to the server for everybody."""
    with pgbouncer(shared.dsn) as dsn:
        database = type(shared)(dsn)
        yield database
        database.admin.close()


def psycopg_(bouncer, bearer, note, between):
    with bouncer.connect() as conn, transaction(conn, bearer):
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def psycopg_pipeline(bouncer, bearer, note, between):
    with bouncer.connect() as conn, conn.pipeline(), transaction(conn, bearer):
        conn.execute("insert into entry (note) values (%s)", (note,))
        between()


def session(bouncer, bearer, note, between, driver="psycopg"):
    with bouncer.engine(driver) as engine, orm.Session(engine) as session, transaction(session, bearer):
        session.execute(sa.text("insert into entry (note) values (:note)"), {"note": note})
        between()


def psycopg2_session(bouncer, bearer, note, between):
    session(bouncer, bearer, note, between, "psycopg2")


def what_is_left(conn):
    """Locks, guards and settings of the server process that everybody shares."""
    return conn.execute(
        "select (select count(*) from pg_locks where locktype = 'advisory'"
        " and database = (select oid from pg_database where datname = current_database())),"
        " coalesce(current_setting('sinkfence.held', true), ''),"
        " (select count(*) from sinkfence.sealed), (select count(*) from pg_prepared_statements),"
        " current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
    ).fetchone()


@pytest.mark.parametrize("write", [psycopg_, psycopg_pipeline, session, psycopg2_session])
def test_transactions_are_guarded_and_leave_nothing(db, token, bouncer, write):
    """The newest owner commits, a stale one doesn't, and the next client finds the connection as it was."""
    sink = PostgresSink(bouncer.dsn)
    sink.arm(token())
    write(bouncer, token(), "in time", lambda: None)
    with pytest.raises(StaleToken):
        write(bouncer, token(), "late", lambda: db.arm(token(1)))  # its own way: the only connection is taken
    with pytest.raises(StaleToken):
        write(bouncer, token(), "later", pytest.fail)
    with bouncer.connect(autocommit=True) as conn:
        assert what_is_left(conn) == (0, "", 0, 0, "0", "0")
    assert db.notes() == ["in time"]


def test_a_guard_is_not_handed_to_the_next_client(db, token, bouncer):
    """Two clients, one server process: what the one has guarded is no guard of the other's transaction."""
    db.arm(token())
    with bouncer.connect() as one, bouncer.connect() as other:
        pid = "select pg_backend_pid()"
        guard(one, token())
        first = one.execute(pid).fetchone()
        one.commit()
        assert other.execute(pid).fetchone() == first
        with pytest.raises(NotEnforced):
            once(other, token(), "step", pytest.fail)


CLIENT = """
import sys
import psycopg
from sinkfence import Token
from sinkfence_postgres import transaction, guard
dsn, job, generation, owner = sys.argv[1:]
token = Token(job, int(generation), owner)
with psycopg.connect(dsn) as conn, transaction(conn, token):
    guard(conn, token, lock=True)
    conn.execute("insert into entry (note) values ('killed')")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_nothing(db, token, bouncer):
    """kill -9 in mid-transaction, with the lock held and a row written: the successor goes on."""
    db.arm(token())
    words = [bouncer.dsn, token().job_id, str(token().generation), token().owner]
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout.readline() == "ready\n"
            assert db.admin.execute(
                "select count(*) > 0 from pg_locks where locktype = 'advisory' and granted"
                " and database = (select oid from pg_database where datname = current_database())"
            ).fetchone() == (True,)
        finally:
            os.kill(client.pid, signal.SIGKILL)
    PostgresSink(bouncer.dsn).arm(token(1))  # waits for the end of the killed one's transaction
    with bouncer.connect() as conn, transaction(conn, token(1)):
        conn.execute("insert into entry (note) values ('successor')")
    with bouncer.connect(autocommit=True) as conn:
        assert what_is_left(conn) == (0, "", 0, 0, "0", "0")
    assert db.notes() == ["successor"]


def test_a_setting_of_the_session_does_leak(db, token, bouncer):
    """Why nothing here is a setting of the session: one of those is the next client's as well."""
    with bouncer.connect(autocommit=True) as one, bouncer.connect(autocommit=True) as other:
        one.execute("set statement_timeout = '77s'")
        assert other.execute("show statement_timeout").fetchone() == ("77s",)
        one.execute("reset statement_timeout")
    with pytest.raises(psycopg.OperationalError), bouncer.connect(options="-c lock_timeout=1s"):
        pytest.fail("startup options are not for a pooler")
