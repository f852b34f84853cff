"""`sinkfence marks`, `schema`, `doctor postgres` and `doctor s3` on real servers."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from command_line import Sinkfence

from sinkfence import Leases, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink, doctor, install
from sinkfence_s3 import FencedBucket
from sinkfence_trials.servers.s3 import S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture
def fenced(dsn: str) -> str:
    """A database that has seen an owner of two jobs."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        install(conn)
    ledger = PostgresSink(dsn)
    ledger.arm(Token("invoice-42", 8, "worker-b:99ab"))
    ledger.arm(Token("reports/latest", 1234, "worker-a:11cd"))
    return dsn


@pytest.fixture
def s3_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Credentials as boto3 finds them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return s3_server


def test_marks_of_a_database(sinkfence: Sinkfence, fenced: str) -> None:
    """`list` shows labels, by prefix; `show` and --json whole owners; a DSN of SQLAlchemy's form will do."""
    code, out, err = sinkfence("marks", "list", "--postgres", fenced)
    assert (code, err) == (0, "")
    head, invoice, report = [line.split("\t") for line in out.splitlines()]
    assert head == ["JOB", "GENERATION", "OWNER", "RAISED AT"]
    assert (invoice[:3], report[:3]) == (
        ["invoice-42", "8", "worker-b"],
        ["reports/latest", "1234", "worker-a"],
    )
    alchemy = fenced.replace("postgresql://", "postgresql+psycopg://", 1)
    (mark,) = json.loads(sinkfence("marks", "list", "inv", "--postgres", alchemy, "--json").out)["marks"]
    shown = json.loads(sinkfence("marks", "show", "invoice-42", "--postgres", fenced, "--json").out)
    assert shown == mark
    assert (mark.pop("raised_at")[:2], mark) == (
        "20",
        {"job_id": "invoice-42", "generation": 8, "owner": "worker-b:99ab"},
    )
    absent = sinkfence("marks", "show", "invoice", "--postgres", fenced)
    assert (absent.code, absent.out) == (1, "")
    assert absent.err == "sinkfence: this database has seen no owner of a job 'invoice'\n"


def test_the_mark_of_an_object(
    sinkfence: Sinkfence, s3_environment: S3Server, s3_client: S3Client, prefix: str
) -> None:
    """`marks show NAME --bucket` tells whose it is, with content or without; 1 if it isn't there."""
    objects = FencedBucket(s3_client, s3_environment.bucket, prefix=prefix)
    objects.object("totals").put(b"rows", Token("reports/totals", 7, "worker-a:1"), step="total")
    where = ["--bucket", s3_environment.bucket, "--prefix", prefix, "--endpoint", s3_environment.endpoint]
    shown = json.loads(sinkfence("marks", "show", "totals", *where, "--json").out)
    assert (shown["job_id"], shown["generation"], shown["size"]) == ("reports/totals", 7, 4)
    objects.object("armed").arm(Token("reports/armed", 8, "worker-b:1"))
    armed = json.loads(sinkfence("marks", "show", "armed", *where, "--json").out)
    assert armed == {"job_id": "reports/armed", "generation": 8, "owner": "worker-b:1"}
    absent = sinkfence("marks", "show", "other", *where)
    assert (absent.code, absent.out) == (1, "")
    assert "nobody has armed or put" in absent.err


def test_doctor_postgres(
    sinkfence: Sinkfence, fenced: str, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced is 0, by argument or by variable; what is not, or not shown to be, is a finding, and 1."""
    fine = sinkfence("doctor", "postgres", application)
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.endswith("\nfenced\n")
    superuser = sinkfence("doctor", "postgres", fenced)
    assert superuser.code == 1
    assert superuser.out.endswith("\nNOT FENCED, or not shown to be\n")
    monkeypatch.setenv("SINKFENCE_POSTGRES", application)
    shown = json.loads(sinkfence("doctor", "postgres", "--json").out)
    assert (shown["fenced"], shown.keys()) == (True, {"where", "fenced", "findings"})
    with psycopg.connect(fenced, autocommit=True) as conn:
        conn.execute("alter table sinkfence.mark disable trigger keep_mark")
        broken = sinkfence("doctor", "postgres")
        conn.execute("alter table sinkfence.mark enable always trigger keep_mark")
    assert broken.code == 1
    assert broken.out.endswith("\nNOT FENCED, or not shown to be\n")


def test_doctor_s3(sinkfence: Sinkfence, s3_environment: S3Server, s3_client: S3Client, prefix: str) -> None:
    """A bucket that enforces conditions is 0, and nothing of the doctor's is left in it."""
    where = ["--bucket", s3_environment.bucket, "--prefix", prefix, "--endpoint", s3_environment.endpoint]
    ran = sinkfence("doctor", "s3", *where)
    assert (ran.code, ran.err) == (0, ""), ran.out
    assert "  ok      race of swaps: enforced\n" in ran.out
    left = s3_client.list_objects_v2(Bucket=s3_environment.bucket, Prefix=prefix)
    assert left.get("KeyCount") == 0
    gone = sinkfence("doctor", "s3", "--bucket", "no-such-bucket", *where[2:])
    assert (gone.code, gone.out) == (3, "")
    assert gone.err.startswith("sinkfence: bucket 'no-such-bucket' at http://")
    odd = sinkfence("doctor", "s3", *where[:3], "a//b", *where[4:])
    assert (odd.code, odd.out) == (2, "")
    assert "as a folder" in odd.err


def test_schema_of_a_lease_store_in_postgresql(sinkfence: Sinkfence, dsn: str) -> None:
    """What is printed makes what `create_schema()` makes, to the letter; twice does no harm."""
    printed = sinkfence("schema", "leases").out
    for _ in range(2):
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(printed)
    by_hand = described(dsn)
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    with Leases(SqlStore(url)) as leases:
        assert leases.acquire("job").generation == 1
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("drop table sinkfence_lease, sinkfence_schema; drop function sinkfence_lease_keep")
    store = SqlStore(url)
    store.create_schema()
    store.close()
    assert by_hand == described(dsn)
    assert "sinkfence_lease_delete" in str(by_hand)


def described(dsn: str) -> list[object]:
    """Columns, constraints, options, triggers and functions, as the catalogue has them."""
    queries = [
        "select table_name, column_name, data_type, collation_name, is_nullable, column_default"
        " from information_schema.columns where table_name like 'sinkfence%' order by 1, 2",
        "select conname, pg_get_constraintdef(oid) from pg_constraint"
        " where conrelid::regclass::text like 'sinkfence%' order by 1",
        "select relname, reloptions from pg_class where relname like 'sinkfence%' order by 1",
        "select tgname, pg_get_triggerdef(oid), tgenabled from pg_trigger"
        " where tgname like 'sinkfence%' order by 1",
        "select proname, prosrc from pg_proc where proname like 'sinkfence%' order by 1",
        "select * from sinkfence_schema",
    ]
    with psycopg.connect(dsn) as conn:
        return [conn.execute(query).fetchall() for query in queries]


def test_schema_of_a_lease_store_in_sqlite(sinkfence: Sinkfence, tmp_path: Path) -> None:
    """What is printed for SQLite makes what `create_schema()` makes."""
    printed = sinkfence("schema", "leases", "--dialect", "sqlite").out
    found = []
    for name in ("by-hand.db", "by-library.db"):
        file = tmp_path / name
        if name == "by-hand.db":
            for _ in range(2):
                with sqlite3.connect(file) as conn:
                    conn.executescript(printed)
                conn.close()
        store = SqlStore(f"sqlite:///{file}")
        if name != "by-hand.db":
            store.create_schema()
        with Leases(store) as leases:
            assert leases.acquire("job").generation == 1
        conn = sqlite3.connect(file)
        rows = conn.execute(
            "select name, sql from sqlite_master where sql is not null order by name"
        ).fetchall()
        versions = conn.execute("select * from sinkfence_schema").fetchall()
        conn.close()
        words = [(name, " ".join(sql.replace("IF NOT EXISTS ", "").split())) for name, sql in rows]
        found.append((words, versions))
    assert found[0] == found[1]


def test_schema_by_psql_and_what_then_works(process: Sinkfence, dsn: str) -> None:
    """The pipe of the help text works, and then the commands do, where they had said what was missing."""
    before = process("leases", "list", SINKFENCE_STORE=dsn)
    assert (before.code, before.out) == (3, "")
    assert "`sinkfence schema leases` prints it as SQL" in before.err
    marks = process("marks", "list", SINKFENCE_POSTGRES=dsn)
    assert marks.code == 3
    assert "`sinkfence schema postgres` prints it as SQL" in marks.err
    for part in ("leases", "postgres"):
        script = process("schema", part).out
        done = subprocess.run(
            ["psql", "-v", "ON_ERROR_STOP=1", "-q", dsn],
            input=script,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert process("leases", "list", SINKFENCE_STORE=dsn) == (0, "", "")
    assert process("marks", "list", "--json", SINKFENCE_POSTGRES=dsn).out == '{\n  "marks": []\n}\n'
    with psycopg.connect(dsn) as conn:
        assert "broken" not in {each.grade for each in doctor(conn).findings}
