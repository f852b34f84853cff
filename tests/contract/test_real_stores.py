"""Every store of the library keeps every promise that it claims."""

from __future__ import annotations

from real_stores import AsyncPostgres, Memory, Postgres, Sqlite

from sinkfence.testing import exercise_store


def not_run(report):
    """What a report leaves open."""
    return {result.promise for result in report.not_run}


def test_memory():
    """MemoryStore counts, for as long as its process lives."""
    report = exercise_store(Memory())
    report.check()
    assert not_run(report) == {"S1 survives-new-handle", "S5 lost-answer-found"}
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
