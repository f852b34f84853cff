"""The demo is not fooled: with the check of one destination switched off, it says so and fails."""

from __future__ import annotations

import io
from contextlib import contextmanager, nullcontext

import psycopg
import pytest
from rich.console import Console

from sinkfence_trials.demo import show as show_module
from sinkfence_trials.demo import stage as stage_module
from sinkfence_trials.demo.places import DOCUMENT

LET_PASS = """
    CREATE OR REPLACE FUNCTION sinkfence.judge(
        job_id text, generation bigint, owner text, mark bigint, mark_owner text)
    RETURNS void LANGUAGE plpgsql AS 'begin end'"""
FORGET = """
    CREATE OR REPLACE FUNCTION sinkfence.arm(job_id text, generation bigint, owner text)
    RETURNS void LANGUAGE plpgsql AS 'begin end'"""
UNCONDITIONAL = """
from sinkfence_s3.exchange import Exchange
conditional = Exchange.write
def write(self, body, etag, **extra):
    if "sinkfence-probe" in self.key:
        return conditional(self, body, etag, **extra)
    return self.send(self.bucket.client.put_object, Body=body, **extra)["ETag"]
Exchange.write = write
"""
BY_ID_ALONE = """
import psycopg
from sinkfence.stores.sql import SqlStore
made = SqlStore.__init__
def init(self, url, **settings):
    self.url = url
    made(self, url, **settings)
def complete(self, token, result, conn=None):
    with psycopg.connect(self.url) as conn:
        conn.execute("UPDATE sinkfence_lease SET result = %s WHERE job_id = %s", (result, token.job_id))
def renew(self, token, ttl, conn=None):  # else the heartbeat may be quicker than the completion, and tell
    with psycopg.connect(self.url) as conn:
        return conn.execute(
            "UPDATE sinkfence_lease SET lease_until = clock_timestamp() + make_interval(secs => %s)"
            " WHERE job_id = %s RETURNING lease_until", (ttl, token.job_id)).fetchone()[0]
SqlStore.__init__, SqlStore.complete, SqlStore.renew = init, complete, renew
"""


@pytest.fixture
def play(monkeypatch, postgres_server, s3_server, s3_client):
    """Play the demo on the tests' own servers, prepared before the story: its exit code and its words."""
    monkeypatch.setattr(stage_module, "postgres", lambda: nullcontext(postgres_server))
    monkeypatch.setattr(stage_module, "s3", lambda: nullcontext(s3_server))
    true_stage, places = show_module.stage, []

    def run(prepare=lambda places: None):
        @contextmanager
        def stage(*args, **kwargs):
            with true_stage(*args, **kwargs) as built:
                places.append(built.places)
                prepare(built.places)
                yield built

        monkeypatch.setattr(show_module, "stage", stage)
        console = Console(file=io.StringIO(), width=200)
        code = show_module.show(console)
        return code, console.file.getvalue()

    yield run
    s3_client.delete_object(Bucket=s3_server.bucket, Key=DOCUMENT)
    for dsn in (dsn for place in places for dsn in (place.leases, place.ledger, place.charges)):
        postgres_server.drop_database(dsn)


@pytest.fixture
def in_workers(monkeypatch, tmp_path):
    """Have Python code run in each worker process before it starts."""

    def patch(code):
        lines = "".join(f"    {line}\n" for line in code.splitlines())
        guard = f'import sys\nif "sinkfence_trials.demo.worker" in sys.orig_argv:\n{lines}'
        (tmp_path / "sitecustomize.py").write_text(guard)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    return patch


def execute(dsn, *statements):
    with psycopg.connect(dsn) as conn:
        for statement in statements:
            conn.execute(statement)


def failed(told):
    return {line.split(maxsplit=1)[1] for line in told.splitlines() if line.strip().startswith("FAIL")}


def named(told, *wanted):
    """Whether just these checks failed, and what was found is said."""
    found = failed(told)
    return len(found) == len(wanted) and all(any(text in line for line in found) for text in wanted)


def test_a_database_and_an_object_store_that_do_not_check_are_named(play, in_workers):
    """A guard that lets all pass, and a bucket that ignores conditions, are each named: the demo exits 1.

    Of the service and the lease store nothing is said.
    """
    in_workers(UNCONDITIONAL)
    code, told = play(lambda places: execute(places.ledger, LET_PASS))
    assert code == 1
    assert named(
        told,
        "worker A's late COMMIT is refused by PostgreSQL (found: ACCEPTED)",
        "table: worker B's, untouched (found: 3 h at the old rate: 270, 3 h",
        "worker A's late PUT is refused by S3 (found: ACCEPTED)",
        "object: worker B's, untouched (found: 3 h at the old rate: 270)",
    ), told


def test_a_service_and_a_lease_store_that_do_not_check_are_named(play, in_workers):
    """A gate that forgets its marks, and a store that goes by the job's id alone, are each named.

    The demo exits 1, and says nothing of the database and the bucket.
    """
    in_workers(BY_ID_ALONE)
    code, told = play(lambda places: execute(places.charges, LET_PASS, FORGET))
    assert code == 1
    assert named(
        told,
        "worker A's late request is refused by the service (found: ACCEPTED)",
        "charges: worker B's, untouched (found: 270 by worker A, 300 by worker B)",
        "worker A's late completion is refused by the lease store (found: ACCEPTED)",
        "worker A is told in the end that its lease was lost",
        "record: worker B's, untouched",
    ), told
