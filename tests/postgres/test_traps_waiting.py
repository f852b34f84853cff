"""The simple checks that do refuse make owners wait, starve or deadlock; and whom ours makes wait."""

from __future__ import annotations

import psycopg
import pytest

from sinkfence.errors import StaleToken
from sinkfence_postgres import PostgresSink, guard, transaction, translated

UPSERT = (
    "insert into simple.mark as m values ('job', {0}) on conflict (job) do update "
    "set generation = excluded.generation where m.generation {1} excluded.generation"
)


def upsert(generation, comparison="<="):
    return UPSERT.format(generation, comparison)


@pytest.fixture
def two(db):
    """Two connections in autocommit: transactions are begun and ended by hand."""
    with db.connect(autocommit=True) as one, db.connect(autocommit=True) as other:
        yield one, other


def test_an_upsert_as_the_guard_makes_writers_of_one_owner_wait(db, simple, two, threads):
    """One: upsert, at work | other: upsert waits until the first transaction has ended, for no reason."""
    one, other = two
    simple.begin(one)
    simple.begin(other)
    one.execute(upsert(7))
    waiting = threads.submit(other.execute, upsert(7))
    db.wait_until_blocked()
    one.execute("commit")
    waiting.result()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_upsert_as_the_guard_fails_writers_of_one_owner(db, simple, two, threads, isolation):
    """Outside READ COMMITTED whoever has waited is sent away: 40001, though nobody was stale."""
    one, other = two
    simple.begin(one, isolation)
    simple.begin(other, isolation)
    simple.answer(other, simple.LOOK)  # its snapshot
    one.execute(upsert(7))
    waiting = threads.submit(other.execute, upsert(7))
    db.wait_until_blocked()
    one.execute("commit")
    with pytest.raises(psycopg.errors.SerializationFailure):
        waiting.result()


def test_a_strict_upsert_refuses_an_owners_second_write(db, simple):
    """With < in place of <= the owner is its own stale predecessor."""
    assert [db.admin.execute(upsert(8, "<")).rowcount for _ in range(2)] == [1, 0]


def test_an_upsert_whose_condition_is_false_locks_all_the_same(db, simple, two, threads):
    """Stale: its upsert matches nothing, at work | newest: kept waiting by it."""
    stale, newest = two
    db.admin.execute(simple.RAISE)
    simple.begin(stale)
    assert stale.execute(upsert(7, "<")).rowcount == 0
    waiting = threads.submit(newest.execute, upsert(9, "<"))
    db.wait_until_blocked()
    stale.execute("rollback")
    assert waiting.result().rowcount == 1


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_guarded_writers_of_one_owner_meet_no_wait_and_no_failure(db, token, two, isolation, lock):
    """Under any isolation two transactions of one owner are checked, written and committed side by side."""
    db.arm(token())
    for conn in two:
        conn.execute(f"begin isolation level {isolation}; set local lock_timeout = '1s'")
        guard(conn, token(), lock=lock)
        conn.execute("insert into entry (note) values ('side by side')")
    for conn in two:
        conn.execute("commit")
    assert db.notes() == ["side by side"] * 2


def test_a_successor_starves_behind_for_share(db, simple, two, threads):
    """First: FOR SHARE | successor: UPDATE waits | second: FOR SHARE, at once | first: COMMIT | and so on.

    Writers that overlap keep the successor out for as long as they come.
    """
    with db.connect(autocommit=True) as new:
        simple.begin(new)
        simple.begin(two[0])
        simple.answer(two[0], simple.LOOK + " for share")
        raising = threads.submit(new.execute, simple.RAISE)
        for turn in range(1, 6):
            before, latest = two[(turn + 1) % 2], two[turn % 2]
            db.wait_until_blocked()
            simple.begin(latest)
            latest.execute("set local lock_timeout = '10s'")
            simple.answer(latest, simple.LOOK + " for share")  # overtakes the successor, who was first
            before.execute("commit")
            waits_for_latest = (
                "exists (select from pg_locks where not granted and transactionid = %(xid)s::xid)"
            )
            xid = latest.execute("select pg_current_xact_id()::xid::text").fetchone()[0]
            db.wait_until(waits_for_latest, xid=xid)
        latest.execute("commit")
        raising.result()
        new.execute("rollback")


def test_writers_with_a_lock_queue_behind_the_arm(db, token, two, threads):
    """First: lock=True | successor: arm waits | second: lock=True, waits | first: COMMIT | second: stale."""
    db.arm(token())
    first, second = two
    for conn in two:
        conn.execute("begin")
    guard(first, token(), lock=True)
    arming = threads.submit(db.arm, token(1))
    db.wait_until_blocked(1)
    late = threads.submit(guard, second, token(), lock=True)
    db.wait_until_blocked(2)
    first.execute("commit")
    arming.result()
    with pytest.raises(StaleToken):
        late.result()


def test_for_share_makes_multixacts_and_a_guard_none(db, simple, token, two):
    """Two sharers of a row are a MultiXact, which is written, and vacuumed; a guard leaves the row alone."""
    members = "select count(*) from simple.mark, pg_get_multixact_members(simple.mark.xmax)"
    db.arm(token())
    for conn in two:
        simple.begin(conn)
        simple.answer(conn, simple.LOOK + " for share")
        guard(conn, token(), lock=True)
    assert simple.answer(two[0], members) == 2
    mark = "select xmax::text from sinkfence.mark where job_id = %s"
    assert db.admin.execute(mark, (token().job_id,)).fetchone() == ("0",)


def test_for_share_and_then_update_deadlocks(db, simple, two, threads):
    """One: FOR SHARE | other: FOR SHARE | one: UPDATE, waits | other: UPDATE, and both wait."""
    one, other = two
    for conn in two:
        conn.execute("set deadlock_timeout = '10ms'")
        simple.begin(conn)
        simple.answer(conn, simple.LOOK + " for share")
    first = threads.submit(one.execute, "update simple.mark set generation = generation")
    db.wait_until_blocked()
    second = threads.submit(other.execute, "update simple.mark set generation = generation")
    outcomes = {type(future.exception()) for future in (first, second)}
    assert psycopg.errors.DeadlockDetected in outcomes


def test_a_mixture_of_both_ways_gets_by_after_a_deadlock_check(db, token, two, threads):
    """With lock=True and the default in one job, an arm may have to wait for deadlock_timeout; nobody fails.

    One (lock=True): at work | other (default): writes a row | one: waits for the row | successor: arm waits
    for the one | other: COMMIT, its check waits behind the arm. The server finds that it may go first.
    """
    db.admin.execute("insert into entry (id, note) overriding system value values (1, 'before')")
    db.arm(token())
    one, other = two
    for conn in two:
        conn.execute("set deadlock_timeout = '50ms'")
        conn.execute("begin")
    guard(one, token(), lock=True)
    guard(other, token())
    other.execute("update entry set note = 'other'")
    updating = threads.submit(one.execute, "update entry set note = 'one'")
    db.wait_until_blocked(1)
    arming = threads.submit(db.arm, token(1))
    db.wait_until_blocked(2)
    other.execute("commit")
    updating.result()
    one.execute("commit")
    arming.result()
    assert db.notes() == ["one"]


def test_a_row_of_a_frozen_owner_is_waited_for_and_no_longer_than_lock_timeout(db, token, two, threads):
    """Arming need not wait; its row does, for lock_timeout, or until the owner's time is up."""
    db.admin.execute("insert into entry (id, note) overriding system value values (1, 'before')")
    db.arm(token())
    old, new = two
    old.execute("begin")
    guard(old, token())
    old.execute("update entry set note = 'old'")
    db.arm(token(1))
    new.execute("set lock_timeout = '10ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable), transaction(new, token(1)):
        new.execute("update entry set note = 'new'")

    def update_when_it_is_free():
        new.execute("set lock_timeout = '20s'")
        with transaction(new, token(1)):
            new.execute("update entry set note = 'new'")

    # As after the 60 s that a guard sets, which a transaction may shorten.
    old.execute("set local idle_in_transaction_session_timeout = '300ms'")
    updating = threads.submit(update_when_it_is_free)
    updating.result()
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout), translated():
        old.execute("commit")
    assert db.notes() == ["new"]


def test_arming_is_not_kept_waiting_by_the_default(db, token, two):
    """However many transactions of the old owner are open, an arm that can't wait at all succeeds."""
    db.arm(token())
    for conn in two:
        conn.execute("begin")
        guard(conn, token())
        conn.execute("insert into entry (note) values ('old')")
    PostgresSink(f"{db.dsn}?options=-clock_timeout%3D100ms").arm(token(1))
    for conn in two:
        with pytest.raises(StaleToken), translated():
            conn.execute("commit")
    assert db.notes() == []
