"""What the stores in databases owe to locks, isolation, settings, lost answers and callers' transactions."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from psycopg.types.numeric import NumericLoader
from sqlalchemy.orm import Session

from sinkfence import Leases
from sinkfence.errors import Conflict, JobCompleted, LeaseHeld, LeaseLost, NotEnforced, OutcomeUnknown
from sinkfence.grants import Grant
from sinkfence.stores.sql import SqlStore, dialects, statements
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.tokens import Token

JOB = "invoice-42"
OpenStore = Callable[..., SqlStore]


def wait_until_blocked(admin: psycopg.Connection, count: int = 1) -> list[int]:
    """Wait until so many sessions of the store wait for a lock, and return their process ids."""
    while True:
        rows = admin.execute(
            "SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE NOT granted AND datname = current_database()"
        ).fetchall()
        if len(rows) >= count:
            return [row[0] for row in rows]


def alchemy(url: str) -> sa.Engine:
    """An engine of a user's."""
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def database_setting(admin: psycopg.Connection, name: str, value: str) -> None:
    """Set a default for all new sessions of the database."""
    admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {name} = '{value}'")


@pytest.fixture
def setting(admin: psycopg.Connection) -> Any:
    """Sets defaults of the database, and takes them back."""
    yield lambda name, value: database_setting(admin, name, value)
    admin.execute(f"ALTER DATABASE {admin.info.dbname} RESET ALL")


@pytest.fixture
def at_commit(admin: psycopg.Connection) -> Callable[[str], list[str]]:
    """Tells what a setting was when each change of a record was committed."""
    admin.execute("CREATE TABLE IF NOT EXISTS seen (name text, value text)")
    admin.execute("TRUNCATE seen")
    admin.execute(
        "CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO seen SELECT name, current_setting(name) "
        "FROM (VALUES ('synchronous_commit'), ('lock_timeout')) AS v(name); RETURN NULL; END $$"
    )
    admin.execute(
        "CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON sinkfence_lease "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
    )
    return lambda name: [r[0] for r in admin.execute("SELECT value FROM seen WHERE name = %s", [name])]


@pytest.mark.parametrize(
    ("before", "committed"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
def test_no_acknowledged_number_is_lost_by_a_crash(
    pg: SqlStore, setting: Any, at_commit: Any, before: str, committed: str
) -> None:
    """Every commit waits for the disk, whatever the database's default, and remote_apply isn't weakened."""
    setting("synchronous_commit", before)
    token = pg.acquire(JOB, "a:1", 30.0).token
    pg.renew(token, 30.0)
    pg.renew_many([(token, 30.0)])
    again = pg.reacquire_above(token, 5, "a:2", 30.0)
    assert again is not None
    pg.release(again.token)
    pg.complete(pg.acquire(JOB, "a:3", 30.0).token, None)
    pg.raise_above(JOB, 50)
    pg.reopen(JOB)
    assert at_commit("synchronous_commit") == [committed] * 9


def test_a_bound_on_waits_ends_with_its_transaction(pg: SqlStore, at_commit: Any) -> None:
    """C74: no setting is left in the session: poolers may share it."""
    for i in range(7):
        pg.release(pg.acquire(JOB, f"a:{i}", 30.0).token)
    assert set(at_commit("lock_timeout")) == {"100ms", "2s"}
    with pg._here().work.connect() as session:
        assert session.exec_driver_sql("SELECT current_setting('lock_timeout')").scalar() == "0"


@pytest.mark.parametrize("locking", ["SELECT FROM sinkfence_lease FOR UPDATE", "LOCK TABLE sinkfence_lease"])
def test_what_is_locked_is_a_held_lease(
    pg: SqlStore, admin: psycopg.Connection, pg_url: str, setting: Any, locking: str
) -> None:
    """While a transaction has the row, or the table, acquire gives up after the role's lock_timeout."""
    setting("lock_timeout", "50ms")
    pg.raise_above(JOB, 1)
    with psycopg.connect(pg_url) as other:
        other.execute(locking)
        with pytest.raises(LeaseHeld) as held:
            pg.acquire(JOB, "a:1", 30.0)
    assert held.value.owner is None
    assert pg.acquire(JOB, "a:1", 30.0).token.generation == 2


def test_locked_records_leave_connections_to_other_jobs(pg: SqlStore, pg_url: str) -> None:
    """Twenty wait for twenty locked records over one connection: each has it for a moment, and no longer.

    Were they to wait as long as a renewal does, the last would wait for a connection beyond the pool's bound.
    """
    store = SqlStore(sa.create_engine(alchemy(pg_url).url, pool_size=1, max_overflow=0))
    jobs = [f"job {i}" for i in range(20)]
    for job in jobs:
        pg.raise_above(job, 1)

    def ask(job: str) -> LeaseHeld:
        with pytest.raises(LeaseHeld) as held:
            store.acquire(job, f"of {job}", 30.0)
        return held.value

    with psycopg.connect(pg_url) as other, ThreadPoolExecutor(20) as pool:
        other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
        assert {held.owner for held in pool.map(ask, jobs)} == {None}
        store.acquire("another", "a:1", 30.0)
    store.close()


class Soft(Exception):
    """A soft time limit, as task queues have them."""


@pytest.mark.usefixtures("unhurried")
def test_what_is_granted_after_an_interruption_is_given_back(
    pg: SqlStore, pg_url: str, admin: psycopg.Connection
) -> None:
    """A handler raises while acquire waits for the row; the server goes on, and grants it to nobody."""
    pg.raise_above(JOB, 1)

    def handler(*_: object) -> None:
        raise Soft

    def interrupt() -> None:
        wait_until_blocked(admin)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with psycopg.connect(pg_url) as other, ThreadPoolExecutor(1) as pool:
            other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
            interrupting = pool.submit(interrupt)
            with pytest.raises(Soft):
                pg.acquire(JOB, "a:1", 30.0)
            interrupting.result()
            wait_until_blocked(admin, 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for thread in threading.enumerate():
        if thread.name == "sinkfence-undoes":
            thread.join()
    assert (pg.get(JOB).generation, pg.get(JOB).owner) == (2, None)


def test_giving_back_opens_no_store_that_was_closed(pg: SqlStore) -> None:
    """Who closes the store after an interruption keeps no connection, however late that thread comes."""
    pg.get(JOB)
    here = pg._here()
    pg.close()
    pg._give_back(here, JOB, "a:1", 30.0)
    assert pg._processes == {}


@pytest.mark.usefixtures("unhurried")
def test_the_clock_is_read_after_the_wait_for_the_row(
    pg: SqlStore, admin: psycopg.Connection, pg_url: str
) -> None:
    """A lease that runs out while B waits for its row's lock is B's, for a whole ttl from then."""
    pg.acquire(JOB, "a:1", 0.3)
    with psycopg.connect(pg_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
        b = pool.submit(pg.acquire, JOB, "b:2", 10.0)
        wait_until_blocked(admin)
        admin.execute("SELECT pg_sleep_until(lease_until + '0.2 s') FROM sinkfence_lease")
        before = admin.execute("SELECT clock_timestamp()").fetchone()[0]
        other.rollback()
        grant = b.result()
    assert grant.token.generation == 2
    assert (grant.lease_until - before).total_seconds() >= 10


@pytest.mark.parametrize("call", ["renew", "reacquire_above"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize(
    "keeping", ["SELECT FROM sinkfence_lease FOR UPDATE", "UPDATE sinkfence_lease SET result = NULL"]
)
def test_what_a_call_waits_for_its_row_is_not_taken_off_the_lease(
    pg: SqlStore, admin: psycopg.Connection, pg_url: str, keeping: str, ends: str, call: str
) -> None:
    """Whether the row is changed meanwhile or only locked, the ttl counts from when the lock was had."""
    token = pg.acquire(JOB, "a:1", 10.0).token
    asked = {"renew": (token, 10.0), "reacquire_above": (token, 41, "a:2", 10.0)}[call]
    with psycopg.connect(pg_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(keeping)
        extending = pool.submit(getattr(pg, call), *asked)
        wait_until_blocked(admin)
        admin.execute("SELECT pg_sleep(0.05)")  # longer than the clocks' grain
        before = admin.execute("SELECT clock_timestamp()").fetchone()[0]
        getattr(other, ends)()
        extending.result()
    assert (pg.get(JOB).lease_until - before).total_seconds() >= 10


def test_one_locked_row_does_not_cost_the_others_their_leases(
    pg: SqlStore, admin: psycopg.Connection, pg_url: str
) -> None:
    """The batch skips a locked row, which is neither renewed nor lost, and renews the others."""
    tokens = [pg.acquire(f"job {i}", f"a:{i}", 30.0).token for i in range(3)]
    with psycopg.connect(pg_url) as other:
        other.execute("SELECT FROM sinkfence_lease WHERE job_id = 'job 1' FOR UPDATE")
        answer = pg.renew_many([(token, 60.0) for token in tokens])
    assert set(answer.renewed) == {tokens[0], tokens[2]}
    assert not answer.lost
    assert not answer.settled
    assert set(pg.renew_many([(token, 60.0) for token in tokens]).renewed) == set(tokens)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_serialization_failures_are_run_again(pg: SqlStore, setting: Any, isolation: str) -> None:
    """C72: whatever the default isolation, one of many takers wins, the others see LeaseHeld."""
    setting("default_transaction_isolation", isolation)
    barrier = threading.Barrier(8)

    def take(owner: str) -> Grant | LeaseHeld:
        barrier.wait()
        try:
            return pg.acquire(JOB, owner, 30.0)
        except LeaseHeld as held:
            return held

    with ThreadPoolExecutor(8) as pool:
        for generation in range(1, 6):
            answers = list(pool.map(take, [f"t:{i}" for i in range(8)]))
            won = [answer for answer in answers if isinstance(answer, Grant)]
            assert [grant.token.generation for grant in won] == [generation]
            pg.renew(won[0].token, 30.0)
            pg.release(won[0].token)


def test_times_do_not_depend_on_time_zones(
    pg: SqlStore, pg_url: str, open_store: OpenStore, setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C55: sessions in several time zones, by PGTZ and by the server, see one instant."""
    until = pg.acquire(JOB, "a:1", 60.0).lease_until
    setting("timezone", "Asia/Kolkata")
    for zone in (None, "America/St_Johns", "Pacific/Apia"):
        if zone:
            monkeypatch.setenv("PGTZ", zone)
        assert open_store(pg_url).get(JOB).lease_until == until


def test_no_clock_of_this_side_is_sent() -> None:
    """C14: statements carry lengths of time and no instants, so a pause before sending changes nothing."""
    token = Token(JOB, 1, "a:1")
    for d in (dialects.POSTGRESQL, dialects.SQLITE):
        sent = [
            statements.acquire(d, JOB, "a:1", 30.0, by_clock=True).query,
            statements.renew(d, token, 30.0).query,
            statements.renew_many(d, [(token, 30.0)]),
            statements.reacquire_above(d, token, 5, "b:2", 30.0, by_clock=True).query,
        ]
        for query in sent:
            assert not any(isinstance(value, datetime) for value in query.params.values())
            assert all(value == 30.0 for value in query.params.values() if isinstance(value, float))
        assert "now()" not in "".join(query.sql for query in sent)


# Answers that get lost.


def test_an_acquire_whose_answer_was_lost_is_found_again(far: SqlStore, wire: Any) -> None:
    """The repetition finds the grant by its owner value: no generation is wasted."""
    far.get(JOB)
    wire.lose_answers = 1
    assert far.acquire(JOB, "a:1", 30.0).token == Token(JOB, 1, "a:1")


@pytest.mark.parametrize("call", ["renew", "complete", "release"])
def test_a_call_whose_answer_was_lost_is_repeated(far: SqlStore, wire: Any, call: str) -> None:
    """C99: renew, complete and release are keyed by owner and generation, so repeating decides them."""
    token = far.acquire(JOB, "a:1", 30.0).token
    wire.lose_answers = 1
    {
        "renew": lambda: far.renew(token, 60.0),
        "complete": lambda: far.complete(token, "[1]"),
        "release": lambda: far.release(token),
    }[call]()
    record = far.get(JOB)
    assert (record.state, record.owner) == {
        "renew": ("open", "a:1"),
        "complete": ("done", "a:1"),
        "release": ("open", None),
    }[call]


def test_what_nobody_answers_is_unknown(far: SqlStore, pg: SqlStore, wire: Any) -> None:
    """Sent, and neither it nor a repetition was answered: OutcomeUnknown, and it may have taken effect."""
    token = far.acquire(JOB, "a:1", 30.0).token
    wire.lose_answers = 1000
    with pytest.raises(OutcomeUnknown):
        far.complete(token, None)
    assert pg.get(JOB).state == "done"


def test_what_was_never_sent_is_not_unknown(pg_url: str, open_store: OpenStore, wire: Any) -> None:
    """Without a server it is the driver's error, and the password isn't in it."""
    wire.close()
    store = open_store(f"postgresql://me:secret-word@127.0.0.1:{wire.port}/db")
    with pytest.raises(sa.exc.OperationalError) as refused:
        store.acquire(JOB, "a:1", 30.0)
    assert "secret-word" not in f"{refused.value!r} {refused.value} {store!r}"


def test_an_ended_session_is_repeated(pg: SqlStore, admin: psycopg.Connection, pg_url: str) -> None:
    """A session that an operator ends in the middle of an acquire costs nothing but another sending."""
    pg.raise_above(JOB, 1)
    with psycopg.connect(pg_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM sinkfence_lease FOR UPDATE")
        a = pool.submit(pg.acquire, JOB, "a:1", 30.0)
        for pid in wait_until_blocked(admin):
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        other.rollback()
        assert a.result().token.generation == 2


def test_results_stay_out_of_error_texts(pg: SqlStore, admin: psycopg.Connection) -> None:
    """An error of the database carries the statement, and not what the job was completed with."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    admin.execute("ALTER TABLE sinkfence_lease ADD CONSTRAINT no CHECK (state <> 'done')")
    with pytest.raises(sa.exc.IntegrityError) as refused:
        pg.complete(token, '"secret-word"')
    assert "[SQL:" in str(refused.value)
    assert "secret-word" not in str(refused.value).partition("[SQL:")[2]


# In a transaction of the caller's.


@pytest.mark.parametrize(
    "kind", ["connection", "session", "psycopg", "psycopg with dict rows", "psycopg with raw cursors"]
)
def test_completion_in_the_callers_transaction_is_provisional(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases], kind: str
) -> None:
    """With conn= the job is done when the caller commits, and as before when the caller rolls back."""
    lease = leases_of(pg).acquire(JOB)
    engine = alchemy(pg_url)
    opened = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "psycopg": lambda: psycopg.connect(pg_url),
        "psycopg with dict rows": lambda: psycopg.connect(pg_url, row_factory=dict_row),
        "psycopg with raw cursors": lambda: psycopg.connect(pg_url, cursor_factory=psycopg.RawCursor),
    }[kind]
    with opened() as conn:
        lease.renew(conn=conn)
        lease.complete({"rows": 17}, conn=conn)
        lease.complete({"rows": 17}, conn=conn)
        conn.rollback()
        assert pg.get(JOB).state == "open"
        assert lease.token.generation == 1
        lease.complete({"rows": 18}, conn=conn)
        conn.commit()
    engine.dispose()
    assert pg.get(JOB).result == {"rows": 18}
    lease.release()
    assert pg.get(JOB).state == "done"


def test_sqlite_takes_part_in_the_callers_transaction(
    lite: SqlStore, lite_url: str, leases_of: Callable[..., Leases]
) -> None:
    """With conn= on SQLite the release is the caller's to commit."""
    lease = leases_of(lite).acquire(JOB)
    engine = sa.create_engine(lite_url)
    with engine.connect() as conn:
        lease.release(conn=conn)
        conn.rollback()
        assert lite.get(JOB).owner is not None
        lease.release(conn=conn)
        conn.commit()
    engine.dispose()
    assert lite.get(JOB).owner is None


def test_a_lost_lease_in_the_callers_transaction_is_told(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases]
) -> None:
    """In a transaction, too, the answer to a predecessor is LeaseLost, and the lease knows it then."""
    lease = leases_of(pg).acquire(JOB)
    pg.raise_above(JOB, 9)
    with psycopg.connect(pg_url) as conn, pytest.raises(LeaseLost):
        lease.complete([1], conn=conn)
    assert lease.lost.is_set()


def test_a_serialization_failure_in_the_callers_transaction_is_theirs_to_repeat(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases]
) -> None:
    """C72: the driver's error passes through, marked retryable."""
    lease = leases_of(pg).acquire(JOB)
    engine = alchemy(pg_url)
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as conn:
        conn.exec_driver_sql("SELECT FROM sinkfence_lease")
        lease.renew()
        with pytest.raises(sa.exc.OperationalError) as failed:
            lease.complete(conn=conn)
    engine.dispose()
    assert any("retryable" in note for note in failed.value.__notes__)
    assert not lease.lost.is_set()


@pytest.mark.parametrize("call", ["renew", "complete", "release"])
def test_a_snapshot_older_than_the_lease_proves_no_loss(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases], losses: Any, call: str
) -> None:
    """C72: a transaction that cannot see the lease is to be run again, and the lease goes on."""
    leases = leases_of(pg, on_lost=losses)
    engine = alchemy(pg_url)
    for _ in range(2):  # a record that is not there yet, and one that is of an earlier turn
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as conn:
            conn.exec_driver_sql("SELECT")
            with leases.hold(JOB) as lease:
                with pytest.raises(Conflict, match="run the whole transaction again"):
                    getattr(lease, call)(conn=conn)
                conn.rollback()
                getattr(lease, call)(conn=conn)
                conn.rollback()
                assert lease.token.generation
    engine.dispose()
    assert losses.heard == []


@pytest.mark.parametrize("call", ["renew", "complete", "release"])
@pytest.mark.parametrize(("before", "within"), [("0", "1min"), ("5min", "5min")])
def test_a_frozen_transaction_of_the_callers_ends(
    pg: SqlStore, pg_url: str, call: str, before: str, within: str
) -> None:
    """It has the row locked: the server ends it when it stands idle, and nothing of that is left behind."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    asked = "SELECT current_setting('idle_in_transaction_session_timeout')"
    with psycopg.connect(pg_url) as conn:
        conn.execute(f"SET idle_in_transaction_session_timeout = '{before}'")
        conn.commit()
        {"renew": partial(pg.renew, token, 30.0), "complete": partial(pg.complete, token, None)}.get(
            call, partial(pg.release, token)
        )(conn=conn)
        assert conn.execute(asked).fetchone() == (within,)
        conn.commit()
        assert conn.execute(asked).fetchone() == (before,)


@pytest.mark.parametrize("heartbeat", [None, 0.02])
def test_a_release_that_the_caller_committed_is_no_loss(
    pg: SqlStore, pg_url: str, leases_of: Callable[..., Leases], losses: Any, heartbeat: float | None
) -> None:
    """Released by the caller's transaction, then acquired by B: the body ends well, whoever sees it first."""
    with leases_of(pg, heartbeat=heartbeat, on_lost=losses).hold(JOB) as lease:
        with psycopg.connect(pg_url) as conn:
            lease.release(conn=conn)
        b = pg.acquire(JOB, "b:2", 30.0)
        while heartbeat and lease.remaining() > 0:
            assert not lease.lost.wait(0.01)
    assert losses.heard == []
    pg.renew(b.token, 30.0)


@pytest.mark.parametrize("alchemist", [False, True])
def test_a_connection_that_reads_numbers_in_its_own_way_tells_a_loss(
    pg: SqlStore, pg_url: str, alchemist: bool
) -> None:
    """A generation that comes as a Decimal, by a loader of the caller's connection, is a number."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    pg.raise_above(JOB, 7)
    engine = alchemy(pg_url)
    with psycopg.connect(pg_url) if not alchemist else engine.connect() as conn:
        driver = conn.connection.driver_connection if alchemist else conn
        driver.adapters.register_loader("int8", NumericLoader)
        with pytest.raises(LeaseLost, match="generation 7"):
            pg.complete(token, None, conn)
    engine.dispose()


@pytest.mark.parametrize("conn", [object(), "postgresql://"])
def test_a_foreign_object_is_no_connection(pg: SqlStore, conn: object) -> None:
    """Whatever is no connection is refused, before anything is sent."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    with pytest.raises(TypeError, match="conn must be"):
        pg.complete(token, None, conn)
    assert pg.get(JOB).state == "open"


# Making a store.


def test_an_engine_says_where_and_its_pool_is_left_alone(pg_url: str, open_store: OpenStore) -> None:
    """A body that has all connections of its engine in use keeps no heartbeat waiting."""
    engine = sa.create_engine(
        pg_url.replace("postgresql://", "postgresql+psycopg://", 1),
        pool_size=1,
        max_overflow=0,
        pool_timeout=1,
    )
    with engine.connect():
        store = open_store(engine)
        token = store.acquire(JOB, "a:1", 30.0).token
        assert token in store.renew_many([(token, 30.0)]).renewed
        assert engine.pool.checkedout() == 1
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(("theirs", "expected"), [({}, 5000), ({"tcp_user_timeout": 700}, 700)])
def test_an_engines_connections_are_missed_when_they_go_silent(
    pg_url: str, driver: str, theirs: dict[str, int], expected: int
) -> None:
    """No packet comes back: found out within seconds as with a URL, or as the engine says."""
    engine = sa.create_engine(pg_url.replace("postgresql:", f"postgresql+{driver}:"), connect_args=theirs)
    store = SqlStore(engine)
    for made in (store._here().work, store._here().beats):
        with made.connect() as connection:
            with socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno())) as way:
                assert way.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected
                assert theirs or way.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    store.close()


@pytest.mark.parametrize(
    ("url", "error", "advice"),
    [
        ("sqlite://", ValueError, "MemoryStore"),
        ("sqlite:///:memory:", ValueError, "MemoryStore"),
        ("mysql://localhost/x", ValueError, "PostgreSQL or SQLite"),
        ("postgresql+asyncpg://localhost/x", ValueError, "asynchronous"),
        ("postgresql+pg8000://localhost/x", ValueError, "use postgresql.psycopg"),
        ("mariadb:secret-word", sa.exc.ArgumentError, "parse"),
    ],
)
def test_a_url_that_cannot_be_is_refused_at_once(url: str, error: type[Exception], advice: str) -> None:
    """A store that cannot work is refused when it is made, without echoing what may hold a password."""
    with pytest.raises(error, match=advice) as refused:
        SqlStore(url)
    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize("name", ["file::memory:?cache=shared&uri=true", "file:/x?vfs=memdb&uri=true"])
def test_an_sqlite_database_in_memory_is_refused_by_whatever_name(open_store: OpenStore, name: str) -> None:
    """What forgets is no durable store: SQLite itself says where it keeps things."""
    store = open_store(f"sqlite:///{name}")
    with pytest.raises(NotEnforced, match="MemoryStore"):
        store.create_schema()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_session_whose_texts_are_bytes_is_refused(pg_url: str, open_store: OpenStore, driver: str) -> None:
    """As in a database of no encoding (SQL_ASCII), where a session has to be told what its texts are in."""
    url = pg_url.replace("postgresql:", f"postgresql+{driver}:")
    with pytest.raises(NotEnforced, match="client_encoding=utf8"):
        open_store(f"{url}?client_encoding=SQL_ASCII").get(JOB)
    open_store(f"{url}?client_encoding=utf8").raise_above("ü", 1)


def test_sqlites_file_is_locked_by_no_pause_between_statements(lite: SqlStore) -> None:
    """A worker that is stopped between two statements keeps nobody out: each is a transaction by itself."""
    sent: list[str] = []
    sa.event.listen(lite._here().work, "before_cursor_execute", lambda *seen: sent.append(seen[2]))
    token = lite.acquire(JOB, "a:1", 30.0).token
    lite.renew(token, 30.0)
    lite.complete(token, None)
    lite.release(token)
    assert len([sql for sql in sent if "INSERT" in sql or "UPDATE" in sql]) == 4
    assert not [sql for sql in sent if sql.startswith(("BEGIN", "COMMIT"))]


@pytest.mark.parametrize("name", ["leases.db", "file:leases.db?uri=true", "file:./leases.db?uri=true"])
@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
def test_sqlites_file_is_where_it_was_named(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, name: str
) -> None:
    """A relative path is read once: a child that changed its directory counts in the same file."""
    here, elsewhere = tmp_path / "a %20 b", tmp_path / "elsewhere"
    for directory in elsewhere, here:
        directory.mkdir()
        monkeypatch.chdir(directory)
        open_store("sqlite:///leases.db").create_schema()
    url = f"{driver}:///{name}"
    store = open_store(url) if driver == "sqlite" else sql_aio.SqlStore(url).sync
    monkeypatch.chdir(elsewhere)
    store.raise_above(JOB, 7)
    store.close()
    whole = sa.URL.create("sqlite", database=str(here / "leases.db"))
    assert open_store(whole).get(JOB).generation == 7


@pytest.mark.parametrize("query", ["host=/tmp&password=secret-word", "sslpassword=secret-word"])
def test_no_password_is_shown(query: str) -> None:
    """A store shows where it is, without what libpq takes as a password, wherever in the URL that stands."""
    shown = repr(SqlStore(f"postgresql+psycopg://u:secret-word@/db?{query}"))
    assert "secret-word" not in shown
    assert "/db" in shown


def test_sqlite_survives_a_power_cut(lite: SqlStore) -> None:
    """An SQLite file is in WAL mode and every commit is synced."""
    lite.get(JOB)
    with lite._here().work.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_completed_job_is_found_by_every_store(url: str, open_store: OpenStore) -> None:
    """What one process recorded, another one reads: text, numbers and escapes as they were."""
    result = {"ü\u0000": [1, 2.5, None, "12345678901234567890"], "n": 12345678901234567890}
    Leases(open_store(url)).acquire(JOB).complete(result)
    with pytest.raises(JobCompleted) as done:
        open_store(url).acquire(JOB, "b:2", 30.0)
    assert done.value.result == result


def test_values_of_the_seam_are_plain(pg: SqlStore) -> None:
    """A record is a value: frozen, comparable, without a connection behind it."""
    pg.raise_above(JOB, 3)
    record = pg.get(JOB)
    assert record == pg.get(JOB)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.generation = 4
