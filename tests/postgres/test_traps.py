"""The simple checks let a stale write through, each by its interleaving; under the same one, ours doesn't."""

from __future__ import annotations

import contextlib
from dataclasses import astuple

import psycopg
import pytest

from sinkfence.errors import SinkfenceError, StaleToken
from sinkfence_postgres import guard, transaction, translated

LOOK = "select generation <= 7 from simple.mark"
READ_COMMITTED, *STRICT = ("read committed", "repeatable read", "serializable")

EARLY = {
    "a look": [LOOK],
    "a lock FOR KEY SHARE": [LOOK + " for key share"],
    "a foreign key": ["insert into simple.child values ('job')", LOOK],
    "a lock in a savepoint that is rolled back": ["savepoint s", LOOK + " for share", "rollback to s"],
}


@pytest.mark.parametrize(
    ("check", "isolation"),
    [(name, READ_COMMITTED) for name in EARLY] + [("a look", isolation) for isolation in STRICT],
)
def test_a_check_before_the_write_comes_too_early(db, simple, check, isolation):
    """Old: check | new: raise and write, not kept waiting | old: write, COMMIT, which nobody refuses."""
    with db.connect(autocommit=True) as old, db.connect(autocommit=True) as new:
        simple.begin(old, isolation)
        assert simple.answer(old, *EARLY[check]) is True
        simple.begin(new)
        new.execute(simple.RAISE)
        new.execute("insert into simple.entry values (8)")
        new.execute("commit")
        assert simple.entries() == [8]
        old.execute("insert into simple.entry values (7)")
        old.execute("commit")
    assert simple.entries() == [8, 7]


@pytest.mark.parametrize("isolation", [READ_COMMITTED, *STRICT])
def test_the_check_inside_commit_is_not_too_early(db, simple, token, isolation):
    """The same steps under a guard: COMMIT is refused, as stale or for its old snapshot."""
    db.arm(token())
    with db.connect(autocommit=True) as old:
        simple.begin(old, isolation)
        guard(old, token())
        db.arm(token(1))
        with db.connect() as new, transaction(new, token(1)):
            new.execute("insert into entry (note) values ('new')")
        old.execute("insert into entry (note) values ('old')")
        with pytest.raises((StaleToken, psycopg.errors.SerializationFailure)), translated():
            old.execute("commit")
    assert db.notes() == ["new"]


BODY = """language plpgsql {0} as $$
  declare passed boolean;
  begin
    perform pg_advisory_xact_lock_shared(7);
    select generation <= 7 into passed from simple.mark;
    return passed;
  end $$"""

BY_AN_OLD_SNAPSHOT = {
    "lock and read in one statement": (
        "with l as materialized (select pg_advisory_xact_lock_shared(7)) select m.generation <= 7 "
        "from l, simple.mark m",
        True,
    ),
    "lock and read in a STABLE function": ("select simple.stable()", True),
    "a subquery in the UPDATE": (
        "update simple.invoice set generation = 7 where id = 1 "
        "and 7 >= (select generation from simple.mark) returning true",
        True,
    ),
    "lock, then read, in a VOLATILE function": ("select simple.volatile()", False),
}


@pytest.mark.parametrize("check", BY_AN_OLD_SNAPSHOT)
def test_a_check_that_has_waited_reads_by_a_snapshot_from_before(db, simple, threads, check):
    """New: lock, raise | old: its check waits | new: COMMIT | old: sees the mark as it was, and passes.

    But for the last, which is what `sinkfence.guard` does.
    """
    statement, passes = BY_AN_OLD_SNAPSHOT[check]
    for volatility in ("stable", "volatile"):
        body = BODY.format(volatility)
        db.admin.execute(f"create function simple.{volatility}() returns boolean {body}")
    with db.connect(autocommit=True) as old, db.connect(autocommit=True) as new:
        simple.begin(new)
        new.execute("select pg_advisory_xact_lock(7)")
        new.execute(simple.RAISE)
        new.execute("update simple.invoice set generation = 8 where id = 1")
        simple.begin(old)
        checking = threads.submit(simple.answer, old, statement)
        db.wait_until_blocked()
        new.execute("insert into simple.entry values (8)")
        new.execute("commit")
        assert checking.result() is passes
        old.execute("insert into simple.entry values (7)")
        old.execute("commit" if passes else "rollback")
    assert simple.entries() == ([8, 7] if passes else [8])


NO_ROW_STOPS_NOTHING = {
    "an upsert that matches nothing": [
        "insert into simple.mark values ('job', 7) on conflict (job) do update "
        "set generation = excluded.generation where mark.generation <= excluded.generation",
        "insert into simple.entry values (7)",
    ],
    "a CTE that nothing refers to": [
        "with fence as (select from simple.mark where generation <= 7) insert into simple.entry values (7)"
    ],
    "an aggregate, which has a row of nothing": [
        "with fence as (select from simple.mark where generation <= 7) "
        "insert into simple.entry select 7 + count(*) from fence"
    ],
}


@pytest.mark.parametrize("pipeline", [False, True], ids=["", "in a pipeline"])
@pytest.mark.parametrize("check", NO_ROW_STOPS_NOTHING)
def test_a_check_that_returns_no_row_stops_nothing(db, simple, check, pipeline):
    """The mark is at 8 from the start; the stale owner's check finds no row, and its write is committed."""
    db.admin.execute(simple.RAISE)
    with db.connect() as old:
        with old.pipeline() if pipeline else contextlib.nullcontext():
            for statement in NO_ROW_STOPS_NOTHING[check]:
                old.execute(statement)
        old.commit()
    assert simple.entries() == [7]


def test_a_guard_raises_and_so_stops_a_pipeline(db, token):
    """All of it is sent before the first answer is read, and nothing of it is applied."""
    db.arm(token())
    db.arm(token(1))
    with db.connect() as old, pytest.raises(StaleToken), translated(), old.pipeline():
        old.execute("select sinkfence.guard(%s, %s, %s)", astuple(token()))
        old.execute("insert into entry (note) values ('old')")
        old.commit()
    assert db.notes() == []


def test_a_refusal_that_is_swallowed_in_a_savepoint_is_none(db, simple):
    """An exception at the check undoes the savepoint that it was made in; what comes after is committed."""
    db.admin.execute(simple.RAISE)
    with db.connect() as old:
        with contextlib.suppress(psycopg.errors.RaiseException), old.transaction():
            old.execute(f"do $$ begin if not ({LOOK}) then raise 'stale'; end if; end $$")
        old.execute("insert into simple.entry values (7)")
        old.commit()
    assert simple.entries() == [7]


def test_a_commit_of_an_aborted_transaction_succeeds(db, simple, token):
    """The server answers it without an error, by the tag ROLLBACK; a guarded block doesn't believe it."""
    db.arm(token())
    with db.connect(autocommit=True) as conn:
        conn.execute("begin")
        with contextlib.suppress(psycopg.Error):
            conn.execute("insert into simple.entry values (null)")
        assert conn.execute("commit").statusmessage == "ROLLBACK"
        with pytest.raises(psycopg.errors.InFailedSqlTransaction), transaction(conn, token()):
            with contextlib.suppress(psycopg.errors.NotNullViolation):
                conn.execute("insert into simple.entry values (null)")
    assert simple.entries() == []


def test_one_statement_that_drains_and_reads_misses_what_it_has_waited_for(db, simple, threads):
    """Old: lock, write | new: raise and sum up in one statement, waits | old: COMMIT | new: its sum is short.

    Arm before you read: `arm` is a transaction of its own, and what is read after it is all there.
    """
    with db.connect(autocommit=True) as old, db.connect(autocommit=True) as new:
        simple.begin(old)
        old.execute(LOOK + " for share")
        old.execute("insert into simple.entry values (7)")
        simple.begin(new)
        summing_up = f"with raised as ({simple.RAISE} returning 1) select count(*) from raised, simple.entry"
        counting = threads.submit(simple.answer, new, summing_up)
        db.wait_until_blocked()
        old.execute("commit")
        assert counting.result() == 0
        assert simple.answer(new, "select count(*) from simple.entry") == 1


def test_the_generation_column_alone_is_no_fence_for_a_job(db, simple):
    """Of a stale owner's batch the row that its successor has written is kept, and the others are lost."""
    late = "update simple.invoice set generation = 7 where id = %s and generation <= 7"
    upsert = (
        "insert into simple.invoice values (%s, 7) on conflict (id) do update "
        "set generation = excluded.generation where invoice.generation <= excluded.generation"
    )
    for statement in (simple.RAISE, "update simple.invoice set generation = 8 where id = 1"):
        db.admin.execute(statement)
    with db.connect() as old:
        assert [old.execute(late, (row,)).rowcount for row in (1, 2)] == [0, 1]  # half of it applied
        old.commit()
        db.admin.execute("delete from simple.invoice where id = 1")  # by the new owner
        assert old.execute(upsert, (1,)).rowcount == 1  # and the row is back
        assert old.execute(late, (3,)).rowcount == 0  # missing, which looks like stale
        old.commit()


def test_a_guarded_batch_is_all_or_nothing(db, token):
    """Whatever rows the successor has or hasn't written, nothing of a stale batch is applied."""
    db.arm(token())
    with db.connect() as old, pytest.raises(SinkfenceError), transaction(old, token()):
        old.execute("insert into entry (note) values ('one')")
        db.arm(token(1))
        old.execute("insert into entry (note) values ('two')")
    assert db.notes() == []


def test_a_ledger_read_in_the_statement_that_writes_it_finds_nothing(db, simple, threads):
    """First: INSERT | second: INSERT or SELECT, waits | first: COMMIT | second: finds neither row."""
    once = (
        "with mine as (insert into simple.mark values ('key', {0}) on conflict do nothing "
        "returning generation) select generation from mine union all "
        "select generation from simple.mark where job = 'key'"
    )
    with db.connect(autocommit=True) as first, db.connect(autocommit=True) as second:
        simple.begin(first)
        assert simple.answer(first, once.format(1)) == 1
        simple.begin(second)
        asking = threads.submit(simple.answer, second, once.format(2))
        db.wait_until_blocked()
        first.execute("commit")
        assert asking.result() is None
        assert simple.answer(second, "select generation from simple.mark where job = 'key'") == 1


def test_a_ledger_in_partitions_of_time_takes_a_key_once_in_each(db, simple):
    """A unique constraint of a partitioned table has to contain what it is partitioned by."""
    db.admin.execute(
        "create table simple.ledger (key text, day int, primary key (key, day)) partition by range (day);"
        "create table simple.monday partition of simple.ledger for values from (1) to (2);"
        "create table simple.tuesday partition of simple.ledger for values from (2) to (3)"
    )
    once = "insert into simple.ledger values ('key', %s) on conflict do nothing"
    assert [db.admin.execute(once, (day,)).rowcount for day in (1, 1, 2)] == [1, 0, 1]
