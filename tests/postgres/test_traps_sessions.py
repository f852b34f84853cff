"""What outlives a transaction: sessions in a pool, prepared transactions, and marks that were restored."""

from __future__ import annotations

from dataclasses import astuple, replace

import psycopg
import psycopg_pool
import pytest

import sinkfence_postgres
from sinkfence.errors import GenerationConflict, NotEnforced, StaleToken
from sinkfence_postgres import PostgresSink, guard, transaction

GUARD = "select sinkfence.guard(%s, %s, %s)"


@pytest.fixture
def pool(db):
    """A pool with one connection, which its users have one after another."""
    with psycopg_pool.ConnectionPool(db.dsn, min_size=1, max_size=1, open=True) as pool:
        yield pool


def test_settings_and_locks_of_a_session_go_to_the_next_user_of_its_pool(db, pool):
    """What SET or pg_advisory_lock has left is there for whoever has the connection next."""
    with pool.connection() as conn:
        conn.execute("set session simple.generation = '7'")
        conn.execute("select pg_advisory_lock(7)")
    with pool.connection() as conn:
        assert conn.execute("select current_setting('simple.generation')").fetchone() == ("7",)
    assert not db.admin.execute("select pg_try_advisory_lock(7)").fetchone()[
        0
    ]  # nobody works, all are kept out


def test_what_a_guard_leaves_to_the_next_user_of_its_pool_guards_nothing(db, pool, token):
    """Its locks and settings end with the transaction, and what is left of its setting is ''."""
    db.arm(token())
    with pool.connection() as conn, transaction(conn, token()):
        conn.execute("insert into entry (note) values ('one')")
    with pool.connection() as conn:
        # Not NULL, as before the first: coalesce() would take it for a value.
        assert conn.execute("select current_setting('sinkfence.held', true)").fetchone() == ("",)
        confirm = "select sinkfence.confirm(%s, %s, %s)"
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(confirm, astuple(token()))
        assert isinstance(sinkfence_postgres.refusal(caught.value), NotEnforced)
        conn.rollback()
        own = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert conn.execute(own).fetchone() == (0,)
    db.arm(token(1))


def test_a_forged_remainder_of_an_earlier_transaction_guards_nothing(db, token):
    """What a session keeps under the setting's name carries no id of this transaction."""
    db.arm(token())
    with db.connect() as conn:
        with transaction(conn, token()):
            held = conn.execute("select current_setting('sinkfence.held')").fetchone()[0]
        conn.execute("select set_config('sinkfence.held', %s, false)", (held,))
        conn.commit()
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("select sinkfence.confirm(%s, %s, %s)", astuple(token()))
    assert caught.value.sqlstate == "SF005"


def test_a_prepared_transaction_keeps_the_successor_out_without_end(elsewhere, token):
    """PREPARE checks, keeps the lock, and outlives its session: arming fails in bounded time and says why.

    The library refuses two-phase transactions; a client of the SQL functions can make them.
    """
    db = elsewhere
    db.arm(token())
    with db.connect(autocommit=True) as conn:
        conn.execute("begin")
        conn.execute(GUARD, astuple(token()))
        conn.execute("insert into entry (note) values ('prepared')")
        conn.execute("prepare transaction 'stuck'")
    sink = PostgresSink(f"{db.dsn}?options=-clock_timeout%3D20ms")
    with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
        sink.arm(token(1))
    assert "ROLLBACK PREPARED" in caught.value.diag.message_hint
    db.admin.execute("commit prepared 'stuck'")  # before the mark rises: in time
    sink.arm(token(1))
    assert db.notes() == ["prepared"]


def test_a_stale_transaction_cannot_be_prepared(elsewhere, token):
    """The check stands inside PREPARE as it does inside COMMIT."""
    db = elsewhere
    db.arm(token())
    with db.connect(autocommit=True) as conn:
        conn.execute("begin")
        conn.execute(GUARD, astuple(token()))
        conn.execute("insert into entry (note) values ('late')")
        db.arm(token(1))
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("prepare transaction 'late'")
    assert caught.value.sqlstate == "SF001"
    assert db.admin.execute("select count(*) from pg_prepared_xacts").fetchone() == (0,)


def test_too_many_jobs_exhaust_the_table_of_locks(elsewhere, token):
    """20,000 jobs of two locks each are more than a server has room for; a guard's 1,000 are not."""
    db = elsewhere
    with pytest.raises(psycopg.errors.OutOfMemory):
        db.admin.execute("select count(pg_advisory_xact_lock_shared(n)) from generate_series(1, 40000) n")
    tokens = [token(job_id=f"many/{number}") for number in range(1000)]
    arm = "select sinkfence.arm(%s, %s, %s)"
    with db.connect(autocommit=True) as conn, conn.pipeline():
        for each in tokens:
            conn.execute(arm, astuple(each))
    with db.connect() as conn:
        guard(conn, *tokens, lock=True)
        conn.commit()


def test_a_restored_dump_has_forgotten_and_new_numbers_mend_it(dsn, postgres_server, db, token):
    """A mark from before the successor lets the stale owner in; so arm anew, above it, before anybody writes.

    The number that comes next must be higher than any that was given out: see the store's floor.
    """
    old, new, after = token(), token(1), token(2)
    with psycopg.connect(dsn, autocommit=True) as conn:
        sinkfence_postgres.install(conn)
        conn.execute("create table entry (note text)")
        arm = "select sinkfence.arm(%s, %s, %s)"
        conn.execute(arm, astuple(old))
        kept = conn.execute("select job_id, max_generation, owner from sinkfence.mark").fetchall()
        conn.execute(arm, astuple(new))
        with pytest.raises(StaleToken), transaction(conn, old):
            pytest.fail("its successor was seen")
        # The dump is from before, and so is what stands here once it is restored.
        conn.execute("alter table sinkfence.mark disable trigger user; truncate sinkfence.mark")
        conn.cursor().executemany("insert into sinkfence.mark values (%s, %s, %s)", kept)
        sinkfence_postgres.install(conn)
        with transaction(conn, old):
            conn.execute("insert into entry values ('stale, and nobody knows')")
        conn.execute(arm, astuple(after))
        for stale in (old, new):
            with pytest.raises(StaleToken), transaction(conn, stale):
                pytest.fail("it is known again")
        with pytest.raises(GenerationConflict), transaction(conn, replace(after, owner="the same number")):
            pytest.fail("numbers are not given out twice")
