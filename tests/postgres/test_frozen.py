"""A real process that is stopped (SIGSTOP) in the middle of its transaction, in each way to write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sinkfence_postgres import PostgresSink, protect, transaction

INSERT = "insert into frozen (job, generation) values (%s, %s)"


@pytest.fixture
def table(db):
    """A table to write to, which refuses whoever has no guard."""
    db.admin.execute("create table frozen (job text, generation bigint)")
    protect(db.admin, "frozen", job_id="job")
    yield lambda: [generation for (generation,) in db.admin.execute("select generation from frozen")]
    db.admin.execute("drop table frozen")


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("by_transaction", "stale {mark}"),
        ("by_once", "stale {mark}"),
        ("by_bound_session", "stale {mark}"),
        ("by_lock", "unknown"),  # its session was ended, which it hears in place of COMMIT's answer
    ],
)
def test_a_process_that_was_stopped_changes_nothing(db, token, table, way, told):
    """Its successor arms, evicts where it must, and writes; the process goes on, and its COMMIT fails."""
    old, new = token(), token(1)
    db.arm(old)
    arguments = [db.dsn, old.job_id, str(old.generation), old.owner]
    command = [sys.executable, Path(__file__).with_name("frozen.py"), way, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "written\n"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            PostgresSink(db.dsn).arm(new, evict=way == "by_lock")
            with db.connect() as conn, transaction(conn, new):
                conn.execute(INSERT, (new.job_id, new.generation))
            assert table() == [new.generation]
            process.send_signal(signal.SIGCONT)
            answer, _ = process.communicate("go\n", timeout=60)
        finally:
            process.kill()
    assert answer == told.format(mark=new.generation) + "\n"
    assert table() == [new.generation]
