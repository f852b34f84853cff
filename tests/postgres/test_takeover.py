"""A successor against an owner in mid-transaction, each interleaving driven by the server's own waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa

import sinkfence_postgres
from sinkfence.errors import NotArmed, SinkfenceError, StaleToken
from sinkfence_postgres import aio, guard, transaction, translated

OWNER = """
import sys, psycopg
from sinkfence.errors import StaleToken
from sinkfence.tokens import Token
from sinkfence_postgres import transaction

dsn, job, generation, owner = sys.argv[1:]
try:
    with psycopg.connect(dsn) as conn, transaction(conn, Token(job, int(generation), owner)):
        conn.execute("insert into entry (note) values ('the old owner')")
        print("written", flush=True)
        sys.stdin.readline()
        print("committing", flush=True)
except StaleToken as stale:
    print("stale", stale.token.generation, stale.mark, flush=True)
else:
    print("committed", flush=True)
"""


@pytest.fixture
def pool_of_threads():
    with ThreadPoolExecutor() as threads:
        yield threads


def test_a_frozen_owner_is_refused_by_its_commit(db, token):
    """A process stopped in mid-transaction keeps nobody waiting; continued, its COMMIT is refused."""
    db.arm(token())
    old = token()
    arguments = [db.dsn, old.job_id, str(old.generation), old.owner]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", OWNER, *arguments], **pipes) as process:
        try:
            assert process.stdout.readline() == "written\n"
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)

            db.arm(token(1))  # not kept waiting: the frozen transaction holds no lock of ours
            with db.connect() as conn, transaction(conn, token(1)):
                conn.execute("insert into entry (note) values ('the new owner')")
            assert db.notes() == ["the new owner"]

            process.send_signal(signal.SIGCONT)
            answer, _ = process.communicate("go\n")
        finally:
            process.kill()
    assert answer.splitlines() == ["committing", f"stale {old.generation} {token(1).generation}"]
    assert db.notes() == ["the new owner"]


def test_arming_waits_for_a_commit_under_way(db, token, pool_of_threads):
    """Between a writer's check inside COMMIT and the end of it no mark rises."""
    db.arm(token())
    with db.connect() as slow, db.connect() as other:
        # The writer's COMMIT: the seal has passed, then a deferred trigger of the user waits for `other`.
        slow.execute("create table slow (n int)")
        slow.execute(
            "create function linger() returns trigger language plpgsql as "
            "$$ begin perform pg_advisory_xact_lock(77); return null; end $$"
        )
        slow.execute(
            "create constraint trigger linger after insert on slow deferrable initially deferred "
            "for each row execute function linger()"
        )
        slow.commit()
        other.execute("select pg_advisory_xact_lock(77)")
        guard(slow, token())
        slow.execute("insert into entry (note) values ('in time')")
        slow.execute("insert into slow values (1)")
        committing = pool_of_threads.submit(slow.commit)
        db.wait_until_blocked(1)
        arming = pool_of_threads.submit(db.arm, token(1))
        db.wait_until_blocked(2)
        assert db.mark(token().job_id) == (token().generation, token().owner)
        other.commit()
        committing.result()
        arming.result()
        slow.execute("drop table slow; drop function linger")
    assert db.notes() == ["in time"]
    assert db.mark(token().job_id) == (token(1).generation, token(1).owner)


def test_a_check_that_waited_for_the_raise_sees_the_raise(db, token, pool_of_threads):
    """A COMMIT whose check queues behind an arm reads the mark after the wait, not before: it is refused."""
    db.arm(token())
    with db.connect() as old, db.connect() as new:
        guard(old, token())
        old.execute("insert into entry (note) values ('late')")
        new.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(1).generation))
        committing = pool_of_threads.submit(old.commit)
        db.wait_until_blocked()
        new.commit()
        with pytest.raises(psycopg.Error) as caught:
            committing.result()
    assert caught.value.sqlstate == "SF001"
    assert isinstance(sinkfence_postgres.refusal(caught.value), StaleToken)
    assert db.notes() == []


def test_a_locking_guard_that_waited_for_the_raise_sees_the_raise(db, token, pool_of_threads):
    """Lock and read are two steps, so that the read is newer than the lock, in guard(lock=True) as well."""
    db.arm(token())
    with db.connect() as old, db.connect() as new:
        new.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(1).generation))
        guarding = pool_of_threads.submit(guard, old, token(), lock=True)
        db.wait_until_blocked()
        new.commit()
        with pytest.raises(StaleToken):
            guarding.result()


def test_an_owner_with_a_lock_is_waited_for(db, token, pool_of_threads):
    """guard(lock=True) keeps the successor from arming until the transaction has ended, and no longer."""
    db.arm(token())
    with db.connect() as old:
        guard(old, token(), lock=True)
        old.execute("insert into entry (note) values ('locked')")
        arming = pool_of_threads.submit(db.arm, token(1))
        db.wait_until_blocked()
        assert not arming.done()
        old.commit()
        arming.result()
    assert db.notes() == ["locked"]


def test_an_arm_that_waits_in_vain_says_so(db, token):
    """Behind a transaction that does not end, arming fails in bounded time and names the way out."""
    db.arm(token())
    with db.connect() as old:
        guard(old, token(), lock=True)
        impatient = sinkfence_postgres.PostgresSink(f"{db.dsn}?options=-clock_timeout%3D20ms")
        with pytest.raises(psycopg.errors.LockNotAvailable, match="waited in vain") as caught:
            impatient.arm(token(1))
    assert "evict" in caught.value.diag.message_hint


def test_a_locked_table_of_marks_is_not_waited_for_without_end(db, token, pool_of_threads):
    """LOCK TABLE, as VACUUM FULL takes it: to arm and to check fail after the 5 s that bound all waits."""
    db.arm(token())
    sink = sinkfence_postgres.PostgresSink(f"{db.dsn}?options=-cstatement_timeout%3D20s")
    with db.connect() as locking:
        locking.execute("lock table sinkfence.mark in access exclusive mode")
        waits = [pool_of_threads.submit(sink.arm, token(later)) for later in (0, 1)]
        for wait in [*waits, pool_of_threads.submit(sink.check, token())]:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                wait.result()


def test_an_owner_with_a_lock_is_evicted(db, token):
    """arm(evict=True) ends the session that keeps the mark from rising; what it had written is gone."""
    other = token(job_id=f"{token().job_id} of another")
    db.arm(token())
    db.arm(other)
    with db.connect() as old, db.connect() as bystander:
        guard(bystander, other, lock=True)
        bystander.execute("insert into entry (note) values ('another job')")
        guard(old, token(), lock=True)
        old.execute("insert into entry (note) values ('evicted')")
        sinkfence_postgres.PostgresSink(db.dsn).arm(token(1), evict=True)
        with pytest.raises(psycopg.OperationalError):
            old.commit()
        bystander.commit()
    assert db.notes() == ["another job"]
    assert db.mark(token().job_id) == (token(1).generation, token(1).owner)


def test_an_owner_with_a_lock_is_evicted_asynchronously(db, token):
    """The asynchronous sink evicts as well."""
    db.arm(token())
    with db.connect() as old:
        guard(old, token(), lock=True)
        asyncio.run(aio.PostgresSink(db.dsn).arm(token(1), evict=True))
        with pytest.raises(psycopg.OperationalError):
            old.commit()


@pytest.mark.parametrize("lock", [True, False])
def test_eviction_spares_the_own_writers(db, token, lock):
    """Arming once more with evict=True ends nothing of one's own."""
    db.arm(token())
    with db.connect() as conn:
        guard(conn, token(), lock=lock)
        sinkfence_postgres.PostgresSink(db.dsn).arm(token(), evict=True)
        conn.execute("insert into entry (note) values ('spared')")
        conn.commit()
    assert db.notes() == ["spared"]


@pytest.mark.parametrize("busy", [True, False])
def test_an_owner_that_keeps_row_locks_is_evicted(db, token, busy):
    """One that is stuck in mid-statement never idles, so no time limit ends it: evict=True does."""
    db.admin.execute("insert into entry (id, note) values (1, 'before') on conflict (id) do nothing")
    db.arm(token())
    sink = sinkfence_postgres.PostgresSink(db.dsn)
    with db.connect() as old, pytest.raises(psycopg.OperationalError):
        guard(old, token())
        old.execute("update entry set note = 'old'")
        with old.cursor().copy("copy entry (note) from stdin") if busy else contextlib.nullcontext():
            sink.arm(token(1), evict=True)
            with sink.begin(token(1)) as conn:
                conn.execute("update entry set note = 'new'")
        old.commit()
    assert db.notes() == ["new"]


def test_a_late_eviction_is_refused(db, token):
    """A stale owner's delayed eviction ends nothing of its successor's, whose transaction commits."""
    db.arm(token(2))
    late = (token(1).job_id, token(1).generation, token(1).owner)
    with db.connect() as new, db.connect() as stale:
        guard(new, token(2), lock=True)
        new.execute("insert into entry (note) values ('spared')")
        with pytest.raises(psycopg.Error) as caught:
            stale.execute("select sinkfence.evict(%s, %s, %s)", late)
        new.commit()
    assert type(sinkfence_postgres.refusal(caught.value)) is StaleToken
    assert db.notes() == ["spared"]


def test_an_eviction_waits_for_a_raise_under_way(db, token, pool_of_threads):
    """What an eviction goes by is the mark as it is when the raise is over, not as it was before."""
    db.arm(token())
    late = (token(1).job_id, token(1).generation, token(1).owner)
    with db.connect() as new, db.connect() as stale:
        new.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(2).generation))
        evicting = pool_of_threads.submit(stale.execute, "select sinkfence.evict(%s, %s, %s)", late)
        db.wait_until_blocked()
        new.commit()
        with pytest.raises(psycopg.Error) as caught:
            evicting.result()
    assert caught.value.sqlstate == "SF001"


def test_a_raise_waits_for_an_eviction_under_way(db, token, pool_of_threads):
    """While sessions are being ended no successor can arm, so none of its own can be among them."""
    db.arm(token())
    mine = (token(1).job_id, token(1).generation, token(1).owner)
    with db.connect() as evicting:
        assert evicting.execute("select sinkfence.evict(%s, %s, %s)", mine).fetchone() == (0,)
        arming = pool_of_threads.submit(db.arm, token(2))
        db.wait_until_blocked()
        evicting.commit()
        arming.result()


def test_a_presence_tells_the_generation(db):
    """Two bytes of a presence are the generation's, the others the job's, which spares other jobs."""
    keys = "select sinkfence.presence_key(%s, %s)"
    one, two, far, other = (
        db.admin.execute(keys, values).fetchone()[0] & (2**64 - 1)
        for values in (("a", 1), ("a", 2), ("a", 65537), ("b", 1))
    )
    assert (one & 65535, two & 65535) == (1, 2)
    assert one == far
    assert one >> 16 == two >> 16 != other >> 16


def test_writers_of_one_owner_do_not_wait_for_each_other(db, token):
    """Two transactions under one token are checked and committed side by side."""
    db.arm(token())
    with db.connect() as one, db.connect() as two:
        guard(one, token(), lock=True)
        guard(two, token(), lock=True)
        one.commit()
        two.commit()


def test_a_row_lock_of_a_frozen_owner_ends(db, token):
    """The waits behind a frozen owner are bounded: both time limits are set where the session has none."""
    limits = "select current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout')"
    db.arm(token())
    with db.connect() as conn:
        with transaction(conn, token()):
            assert conn.execute(limits).fetchone() == ("5s", "1min")
        assert conn.execute(limits).fetchone() == ("0", "0")
        conn.execute(
            "set session lock_timeout = '9s'; set session idle_in_transaction_session_timeout = '8s'"
        )
        conn.commit()
        with transaction(conn, token()):
            assert conn.execute(limits).fetchone() == ("9s", "8s")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_old_snapshot_never_commits(db, token, isolation):
    """A snapshot older than the raise ends in a serialization failure, not in a stale commit."""
    db.arm(token())
    with db.connect() as old:
        old.execute(f"set session characteristics as transaction isolation level {isolation}")
        old.commit()
        with pytest.raises(psycopg.errors.SerializationFailure), transaction(old, token()):
            old.execute("insert into entry (note) values ('old snapshot')")
            db.arm(token(1))
        with pytest.raises(StaleToken), transaction(old, token()):
            pytest.fail("a new snapshot sees the new mark")
        with transaction(old, token(1)):
            old.execute("insert into entry (note) values ('new')")
    assert db.notes() == ["new"]


def test_arming_under_a_stricter_default_isolation(db, token, pool_of_threads):
    """Where the database's default is SERIALIZABLE, an arm that meets another is repeated, and sees it."""
    strict = sinkfence_postgres.PostgresSink(
        f"{db.dsn}?options=-cdefault_transaction_isolation%3Dserializable"
    )
    strict.arm(token())
    with db.connect() as other:
        other.execute("select sinkfence.arm(%s, %s, 'b')", (token().job_id, token(1).generation))
        arming = pool_of_threads.submit(strict.arm, token(2))
        db.wait_until_blocked()
        other.commit()
        arming.result()
    assert db.mark(token().job_id) == (token(2).generation, token(2).owner)


def test_checks_fired_early_hold_the_lock(db, token, pool_of_threads):
    """SET CONSTRAINTS ALL IMMEDIATE fires the check early: the lock is held from there on."""
    db.arm(token())
    with db.connect() as old:
        guard(old, token())
        old.execute("set constraints all immediate")
        old.execute("insert into entry (note) values ('after an early check')")
        arming = pool_of_threads.submit(db.arm, token(1))
        db.wait_until_blocked()
        old.commit()
        arming.result()
    assert db.notes() == ["after an early check"]


def test_a_check_fired_early_in_a_savepoint_is_made_again(db, token):
    """Rolled back to before it, an early check has let go of its lock, and COMMIT makes the check anew."""
    db.arm(token())
    with db.connect() as old:
        guard(old, token())
        old.execute("savepoint s")
        old.execute("set constraints all immediate")
        old.execute("rollback to s")
        old.execute("insert into entry (note) values ('late')")
        db.arm(token(1))  # the lock went with the savepoint
        with pytest.raises(StaleToken), translated():
            old.commit()
    assert db.notes() == []


def test_a_replication_role_does_not_switch_the_check_off(db, token):
    """session_replication_role = replica, as loaders of bulk data set it, leaves the check inside COMMIT."""
    db.arm(token())
    with db.connect() as old:
        old.execute("set session session_replication_role = replica")
        old.commit()
        with pytest.raises(StaleToken), transaction(old, token()):
            old.execute("insert into entry (note) values ('late')")
            db.arm(token(1))
    assert db.notes() == []


def test_a_refusal_swallowed_in_a_savepoint_does_not_help(db, token):
    """A second guard that is refused inside a savepoint and ignored changes nothing: COMMIT is refused."""
    db.arm(token())
    with db.connect() as old, pytest.raises(StaleToken), transaction(old, token()):
        db.arm(token(1))
        with pytest.raises(StaleToken), old.transaction():
            guard(old, token())
        old.execute("insert into entry (note) values ('swallowed')")
    assert db.notes() == []


def test_savepoints_inside_do_not_weaken_the_guard(db, token):
    """Released and rolled back savepoints leave the guard of the outer transaction as it was."""
    db.arm(token())
    with db.connect() as old, pytest.raises(StaleToken), transaction(old, token()):
        with old.transaction():
            old.execute("insert into entry (note) values ('one')")
        with old.transaction(force_rollback=True):
            old.execute("insert into entry (note) values ('two')")
        db.arm(token(1))
    assert db.notes() == []


def test_nested_orm_transactions_do_not_weaken_the_guard(db, token):
    """begin_nested() of a Session inside a guarded transaction is a savepoint of it."""
    db.arm(token())
    engine = sa.create_engine(db.url())
    with sa.orm.Session(engine) as session, pytest.raises(StaleToken), transaction(session, token()):
        with session.begin_nested():
            session.execute(sa.text("insert into entry (note) values ('nested')"))
        db.arm(token(1))
    engine.dispose()
    assert db.notes() == []


def test_a_guard_goes_with_its_savepoint(db, token):
    """A guard inside a savepoint that is rolled back is gone, and so is what was written there."""
    db.arm(token())
    with db.connect() as conn:
        conn.execute("savepoint s")
        guard(conn, token())
        conn.execute("rollback to s")
        held = conn.execute("select coalesce(current_setting('sinkfence.held', true), '')").fetchone()[0]
        assert token().job_id not in held


def test_two_generations_in_one_transaction_are_refused(db, token, holder):
    """A transaction that has begun for one owner can't go on for its successor: the first is stale."""
    db.arm(token())
    second = holder(token(1))
    with db.connect() as conn, pytest.raises(StaleToken) as caught, transaction(conn, token()):
        db.arm(token(1))
        guard(conn, second)
        pytest.fail("the second guard passed")
    assert (caught.value.token, caught.value.mark) == (token(), token(1).generation)
    assert second.heard == []  # it is not the second that is stale


def test_two_generations_are_told_apart_by_the_owner_too(db, token):
    """What a transaction guards is remembered with generation and owner; the same token twice is fine."""
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        guard(conn, token())
        held = conn.execute("select current_setting('sinkfence.held')").fetchone()[0]
        xid = conn.execute("select pg_current_xact_id()::text").fetchone()[0]
    entry = f"{token().job_id}\t{token().generation}\t{token().owner}"
    assert held.split("\n") == [xid, entry, ""]


def test_several_jobs_stand_or_fall_together(db, token):
    """One transaction guards several jobs; one stale token refuses all of it, and its own bearer is told."""
    a, b = token(job_id="several/a"), token(job_id="several/b")
    db.arm(a)
    db.arm(b)
    with db.connect() as conn, transaction(conn, b, a):
        conn.execute("insert into entry (note) values ('both')")
    with db.connect() as conn, pytest.raises(StaleToken) as caught, transaction(conn, b, a):
        conn.execute("insert into entry (note) values ('neither')")
        db.arm(token(1, job_id="several/b"))
    assert caught.value.token == b
    assert db.notes() == ["both"]


def test_several_jobs_are_entered_in_one_order(db, token):
    """Two transactions that share jobs lock them in the same order, whatever order they name them in."""
    tokens = [token(job_id=f"order/{name}") for name in ("ä", "b", "a", "Z")]
    for each in tokens:
        db.arm(each)
    with db.connect() as conn:
        guard(conn, *tokens, lock=True)
        held = conn.execute("select current_setting('sinkfence.held')").fetchone()[0]
    names = [line.partition("\t")[0] for line in held.splitlines()[1:]]
    assert names == ["order/Z", "order/a", "order/b", "order/ä"]


def test_too_many_jobs_are_refused_before_any_is_sent(db, token):
    """More than 1,000 jobs would exhaust the server's lock table; none at all is a mistake."""
    with db.connect() as conn:
        with pytest.raises(ValueError, match="1000"):
            guard(conn, *[token()] * 1001)
        with pytest.raises(TypeError, match="not a list"):
            guard(conn, [token()])
        with pytest.raises(ValueError, match="not 0"), transaction(conn):
            pass


def test_a_killed_backend_applies_nothing(db, token):
    """The server process of a guarded transaction is ended: the driver's own error, no row, no lock left."""
    db.arm(token())
    with db.connect() as old, db.connect(autocommit=True) as admin:
        with pytest.raises(psycopg.OperationalError) as caught, transaction(old, token()):
            old.execute("insert into entry (note) values ('killed')")
            admin.execute("select pg_terminate_backend(%s, 5000)", (old.info.backend_pid,))
            old.execute("select 1")
        assert not isinstance(caught.value, SinkfenceError)
    db.arm(token(1))
    assert db.notes() == []


def test_nothing_of_a_guarded_transaction_stays_behind(db, token):
    """After COMMIT and after ROLLBACK no lock, no sealed row and no setting is left: poolers may go on."""
    db.arm(token())
    with db.connect() as conn:
        with transaction(conn, token()):
            pass
        assert conn.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
        guard(conn, token(), lock=True)
        conn.rollback()
        left = "select (select count(*) from sinkfence.sealed), "
        left += "(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()), "
        left += "current_setting('sinkfence.held', true)"
        assert conn.execute(left).fetchone() == (0, 0, "")


def test_not_armed_in_an_old_snapshot(db, token):
    """Arm before you read: a REPEATABLE READ transaction that is older than the arm does not see it."""
    with db.connect() as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("select 1 from entry")
        db.arm(token())
        with pytest.raises(NotArmed):
            guard(conn, token())


def test_arming_is_idempotent_and_races_safely(db, token, pool_of_threads):
    """Many arms at once of rising generations: the highest wins, and each loser is told that it is stale."""
    with psycopg_pool.ConnectionPool(db.dsn, min_size=4, open=True) as pool:
        sink = sinkfence_postgres.PostgresSink(pool)

        def outcome(later: int) -> type[Exception] | None:
            try:
                sink.arm(token(later % 10))
            except StaleToken as stale:
                return type(stale)
            return None

        outcomes = list(pool_of_threads.map(outcome, range(40)))
    assert set(outcomes) <= {None, StaleToken}
    assert db.mark(token().job_id) == (token(9).generation, token(9).owner)


def test_an_eviction_that_is_overtaken_is_stale_whatever_the_default_isolation(db, token):
    """A newer owner arms while it waits for the mark: 40001 under REPEATABLE READ, sent again StaleToken."""
    db.arm(token())
    strict = sinkfence_postgres.PostgresSink(
        f"{db.dsn}?options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"
    )
    with db.connect() as newer, ThreadPoolExecutor(1) as pool:
        newer.execute("select sinkfence.arm(%s, %s, %s)", astuple(token(2)))
        arming = pool.submit(strict.arm, token(1), evict=True)
        db.wait_until(
            "exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%%evict%%')"
        )
        newer.commit()
        with pytest.raises(StaleToken):
            arming.result()
