"""Every store of the library keeps every promise that it claims."""

from __future__ import annotations

import pytest
from real_stores import AsyncPostgres, Memory, Postgres, Sqlite

from sinkfence.testing import exercise_store


def not_run(report):
    """What a report leaves open."""
    return {result.promise for result in report.not_run}


def test_memory():
    """MemoryStore counts, for as long as its process lives."""
    report = exercise_store(Memory())
    report.check()
    assert not_run(report) == {"S1 survives-new-handle", "S5 lost-answer-found", "S7 backup-put-back"}
    assert "must not arm a sink that lives on" in str(report)


def test_sqlite(tmp_path):
    """SqlStore on a file."""
    report = exercise_store(Sqlite(tmp_path), examples=5)
    report.check()
    assert not_run(report) == {"S5 lost-answer-found"}


def test_postgresql(dsn):
    """SqlStore on a server, and over a wire that loses answers."""
    report = exercise_store(Postgres(dsn), examples=6)
    report.check()
    assert not_run(report) == set()


def test_postgresql_asked_by_an_event_loop(dsn):
    """The asynchronous SqlStore, likewise."""
    report = exercise_store(AsyncPostgres(dsn), examples=2)
    report.check()
    assert not_run(report) == set()


START = 3_000_000_000
"""Where 31 bits, and 32 with a sign, have run out."""


@pytest.mark.parametrize("floor", [None, "clock"])
def test_large_numbers_on_a_file(tmp_path, floor):
    """C50: the whole contract from generation 3,000,000,000 on, or from the milliseconds since 2020."""
    report = exercise_store(Sqlite(tmp_path, floor), examples=4, start=START)
    report.check()
    assert not_run(report) == {"S5 lost-answer-found"}


@pytest.mark.parametrize(("kind", "floor"), [(Postgres, None), (Postgres, "clock"), (AsyncPostgres, None)])
def test_large_numbers_on_a_server(dsn, kind, floor):
    """C50: likewise, over a wire that loses answers."""
    report = exercise_store(kind(dsn, floor), examples=3 if kind is Postgres else 1, start=START)
    report.check()
    assert not_run(report) == set()
