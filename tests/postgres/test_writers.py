"""A writer that is no library at all: SQL, as psql and whatever else sends it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import astuple

import psycopg2
import pytest

from sinkfence_postgres import PostgresSink, refusal, transaction

PSQL = shutil.which("psql")


class Psql:
    """A psql that is fed line by line, and tells SQLSTATEs."""

    def __init__(self, dsn: str) -> None:
        command = [PSQL, "-X", "-q", "-A", "-t", "-v", "VERBOSITY=sqlstate", dsn]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, *lines: str) -> list[str]:
        """Send lines and return what psql has said to them."""
        self.process.stdin.write("\n".join([*lines, r"\echo over", ""]))
        self.process.stdin.flush()
        said = iter(self.process.stdout.readline, "over\n")
        return [line.strip() for line in said if line.strip()]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def psql(db):
    if PSQL is None:
        pytest.skip("not run: there is no psql on the PATH")
    psql = Psql(db.dsn)
    yield psql
    psql.close()


def call(function, token):
    return "select sinkfence.{}('{}', {}, '{}');".format(function, *astuple(token))


def test_psql(db, token, psql):
    """Armed and guarded by SQL alone: the newest commits, a stale start and a stale COMMIT are SF001."""
    insert = "insert into entry (note) values ('{}');"
    assert psql(call("arm", token())) == []
    assert psql("begin;", call("guard", token()), insert.format("in time"), "commit;") == []
    assert psql("begin;", call("guard", token()), insert.format("late")) == []
    db.arm(token(1))
    assert psql("commit;") == ["ERROR:  SF001"]
    assert psql("begin;", call("guard", token())) == ["ERROR:  SF001"]
    assert psql(insert.format("later"), "commit;") == ["ERROR:  25P02"]
    assert psql("begin;", call("guard", token(2))) == ["ERROR:  SF003"]
    assert db.notes() == ["in time"]


def test_psql_on_a_protected_table(db, token, psql):
    """A table that is protected refuses who has not guarded, and a row of another job."""
    psql("create table kept (job_id text, note text);", "select sinkfence.protect('kept', 'job_id');")
    try:
        psql(call("arm", token()))
        insert = "insert into kept values ('{}', 'x');"
        assert psql(insert.format(token().job_id)) == ["ERROR:  SF002"]
        assert psql("begin;", call("guard", token()), insert.format("another")) == ["ERROR:  SF004"]
        assert psql("rollback;", "begin;", call("guard", token()), insert.format(token().job_id)) == []
        assert psql("commit;", "select count(*) from kept;") == ["1"]
    finally:
        psql("rollback;", "drop table kept;")


def test_guarding_in_a_statement_of_its_own_protects_nothing(db, token, psql):
    """In psql's autocommit the guard is over before the write begins: protect the table, or BEGIN."""
    PostgresSink(db.dsn).arm(token())
    assert psql(call("guard", token())) == []
    PostgresSink(db.dsn).arm(token(1))
    assert psql("insert into entry (note) values ('unguarded');") == []
    assert db.notes() == ["unguarded"]


def test_a_dbapi_of_another_make(db, token):
    """psycopg2 without SQLAlchemy: the functions do the work, and `refusal` reads the error."""
    PostgresSink(db.dsn).arm(token())
    conn = psycopg2.connect(db.dsn)
    try:
        with conn.cursor() as cursor:
            cursor.execute("select sinkfence.guard(%s, %s, %s)", astuple(token()))
            cursor.execute("insert into entry (note) values ('late')")
        PostgresSink(db.dsn).arm(token(1))
        with pytest.raises(psycopg2.Error) as caught:
            conn.commit()
    finally:
        conn.close()
    assert refusal(caught.value).mark == token(1).generation
    assert db.notes() == []


def test_a_connection_of_psycopg2_is_no_kind_of_ours(db, token):
    """It goes through SQLAlchemy, or through SQL."""
    conn = psycopg2.connect(db.dsn)
    try:
        with pytest.raises(TypeError, match="expected one of psycopg"), transaction(conn, token()):
            pytest.fail("entered")
    finally:
        conn.close()
