"""The service of a run is killed at any moment: whoever comes next can go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sinkfence.tokens import Token
from sinkfence_trials.history import read
from sinkfence_trials.torture.caller import Caller
from sinkfence_trials.torture.destinations import Write
from sinkfence_trials.torture.serving import Service

JOB = "torture/served/job"


def test_a_step_that_was_begun_and_not_done_is_made_by_the_successor(tmp_path: Path) -> None:
    """Killed after it had taken the key and before the effect: the same step of the next owner is done."""
    first, second = Token(JOB, 1, "A:1"), Token(JOB, 2, "B:2")
    log = tmp_path / "service.jsonl"
    with closing(Service(tmp_path)) as service:
        caller = Caller(service.url)
        caller.write(first, Write("a1", "step 1", caller.read(first)))
        service.kill()
        log.write_text("")
        with closing(sqlite3.connect(tmp_path / "marks/answers.sqlite")) as db, db:
            assert db.execute("UPDATE record SET answer = NULL").rowcount == 1
        service.start()
        caller.arm(second)
        assert caller.write(second, Write("b1", "step 1", caller.read(second))) == "b1"
        assert [event.value["id"] for event in read([log])] == ["b1"]
