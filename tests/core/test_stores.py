"""What every store promises, one step at a time."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from sinkfence.errors import (
    GenerationExhausted,
    JobCompleted,
    LeaseHeld,
    LeaseLost,
    NotEnforced,
    SchemaMismatch,
)
from sinkfence.grants import Grant, Store, check_label, fresh_owner
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore, sessions
from sinkfence.tokens import MAX_GENERATION, Token

JOB = "reports/latest"


def expired(store: Store, owner: str = "a:1") -> Grant:
    """Acquire, and let the lease run out by the store's clock."""
    grant = store.acquire(JOB, owner, 0.05)
    while True:
        record = store.get(JOB)
        assert record is not None
        if record.remaining == 0.0:
            return grant


def test_each_acquisition_gets_the_next_generation(store: Store) -> None:
    """The generation rises by one at each acquisition, whether the last lease was released or ran out."""
    first = store.acquire(JOB, "a:1", 30.0)
    store.release(first.token)
    assert expired(store, "b:2").token == Token(JOB, 2, "b:2")
    assert store.acquire(JOB, "c:3", 30.0).token.generation == 3


def test_names_of_an_enum_are_their_values(store: Store) -> None:
    """A job_id and an owner that are members of a str Enum are those of a plain str."""
    names = Enum("names", {"JOB": JOB, "OWNER": "a:1", "NEXT": "a:2"}, type=str)
    first = store.acquire(names.JOB, names.OWNER, 30.0).token
    second = store.reacquire_above(first, 1, names.NEXT, 30.0)
    assert second is not None
    assert second.token == Token(JOB, 2, "a:2")
    for name in names.JOB, JOB:
        record = store.get(name)
        assert record is not None
        assert (record.generation, record.owner) == (2, "a:2")


def test_a_live_lease_lets_nobody_in(store: Store) -> None:
    """C23: only the stored end counts, whatever ttl the asking side is configured with."""
    store.acquire(JOB, "a:1", 30.0)
    with pytest.raises(LeaseHeld) as held:
        store.acquire(JOB, "b:2", 0.05)
    assert held.value.owner == "a:1"
    assert 25 < held.value.retry_after <= 30


def test_a_repeated_acquire_finds_its_own_grant(store: Store, request: pytest.FixtureRequest) -> None:
    """An acquire whose answer was lost is found again by its owner value, under the same generation."""
    if isinstance(store, MemoryStore):
        pytest.skip("no answer of a memory store is lost")
    first = store.acquire(JOB, "a:1", 30.0)
    assert store.acquire(JOB, "a:1", 30.0) == first


def test_times_are_aware_and_in_utc(store: Store) -> None:
    """C55: one instant, whatever time zones server, session and client are in."""
    before = datetime.now(UTC)
    grant = store.acquire(JOB, "a:1", 60.0)
    record = store.get(JOB)
    assert record is not None
    assert record.lease_until == grant.lease_until
    assert grant.lease_until.tzinfo is UTC
    assert 55 < (grant.lease_until - before).total_seconds() < 65


def test_an_expired_lease_that_nobody_took_is_renewed(store: Store) -> None:
    """Renewal needs owner and generation, not a running lease: nobody else was given the job."""
    grant = expired(store)
    store.renew(grant.token, 30.0)
    with pytest.raises(LeaseHeld):
        store.acquire(JOB, "b:2", 30.0)


@pytest.mark.parametrize("call", ["renew", "complete", "release"])
def test_a_predecessor_changes_nothing(store: Store, call: str) -> None:
    """C18: after a takeover the old owner's calls are LeaseLost and leave the record as it is."""
    old = expired(store).token
    store.acquire(JOB, "b:2", 30.0)
    before = store.get(JOB)
    with pytest.raises(LeaseLost, match="generation 2"):
        {
            "renew": lambda: store.renew(old, 30.0),
            "complete": lambda: store.complete(old, '"mine"'),
            "release": lambda: store.release(old),
        }[call]()
    after = store.get(JOB)
    assert before is not None
    assert after is not None
    assert (after.owner, after.generation, after.state, after.lease_until) == (
        before.owner,
        before.generation,
        before.state,
        before.lease_until,
    )
    with pytest.raises(LeaseHeld):
        store.acquire(JOB, "c:3", 30.0)


@pytest.mark.parametrize("imposter", [Token(JOB, 1, "b:2"), Token(JOB, 2, "a:1"), Token("other", 1, "a:1")])
@pytest.mark.parametrize("call", ["renew", "complete", "release", "reacquire_above", "renew_many"])
def test_every_change_matches_on_owner_and_generation(store: Store, call: str, imposter: Token) -> None:
    """C98: the right number under another owner is as foreign as another number, and the reverse."""
    grant = store.acquire(JOB, "a:1", 30.0)
    if call == "reacquire_above":
        assert store.reacquire_above(imposter, 5, "c:3", 30.0) is None
    elif call == "renew_many":
        assert imposter in store.renew_many([(imposter, 60.0)]).lost
    else:
        with pytest.raises(LeaseLost):
            {
                "renew": lambda: store.renew(imposter, 60.0),
                "complete": lambda: store.complete(imposter, None),
                "release": lambda: store.release(imposter),
            }[call]()
    record = store.get(JOB)
    assert record is not None
    assert (record.owner, record.generation, record.lease_until) == ("a:1", 1, grant.lease_until)


def test_a_repeated_complete_succeeds(store: Store) -> None:
    """C99: a complete whose first answer was lost finds itself done; another result is not dropped."""
    token = store.acquire(JOB, "a:1", 30.0).token
    store.complete(token, '{"rows": 17}')
    store.complete(token, '{"rows": 17}')
    with pytest.raises(LeaseLost, match="completed"):
        store.complete(token, '{"rows": 18}')
    with pytest.raises(JobCompleted) as done:
        store.acquire(JOB, "b:2", 30.0)
    assert done.value.result == {"rows": 17}


def test_a_released_job_stays_released(store: Store) -> None:
    """C16: a renewal that arrives after the release revives nothing; a second release succeeds."""
    token = store.acquire(JOB, "a:1", 30.0).token
    store.release(token)
    store.release(token)
    with pytest.raises(LeaseLost):
        store.renew(token, 30.0)
    assert token in store.renew_many([(token, 30.0)]).settled
    record = store.get(JOB)
    assert record is not None
    assert (record.owner, record.lease_until, record.generation) == (None, None, 1)


def test_releasing_what_is_completed_succeeds(store: Store) -> None:
    """hold()'s exit after a complete in the caller's own transaction has nothing to complain about."""
    token = store.acquire(JOB, "a:1", 30.0).token
    store.complete(token, None)
    store.release(token)
    assert store.get(JOB).state == "done"


def test_a_batch_tells_renewed_from_settled_from_lost(store: Store) -> None:
    """Only a read that shows another owner, generation or no record makes a loss."""
    mine = [store.acquire(f"job {i}", "a:1", 30.0).token for i in range(3)]
    gone = Token("job 9", 1, "a:1")
    store.complete(mine[1], None)
    taken = Token("job 2", 1, "z:9")
    answer = store.renew_many([(token, 90.0) for token in (*mine[:2], taken, gone)])
    assert set(answer.renewed) == {mine[0]}
    assert answer.settled == {mine[1]}
    assert set(answer.lost) == {taken, gone}
    record = store.get("job 0")
    assert record is not None
    assert record.lease_until == answer.renewed[mine[0]]
    assert record.remaining > 80


def test_reacquiring_goes_above_and_is_found_again(store: Store) -> None:
    """The repair raises above both numbers, under a fresh owner; the replaced token is nobody's then."""
    token = store.acquire(JOB, "a:1", 30.0).token
    above = store.reacquire_above(token, 41, "a:2", 30.0)
    assert above is not None
    assert above.token == Token(JOB, 42, "a:2")
    lower = store.reacquire_above(above.token, 7, "a:3", 30.0)
    assert lower is not None
    assert lower.token.generation == 43
    assert store.reacquire_above(token, 99, "a:4", 30.0) is None
    with pytest.raises(LeaseLost):
        store.renew(token, 30.0)


def test_the_counter_ends_and_never_wraps(store: Store) -> None:
    """C47: after 10^15 - 1 there is nothing to acquire, and the record stays as it is."""
    store.raise_above(JOB, MAX_GENERATION - 1)
    token = store.acquire(JOB, "a:1", 30.0).token
    assert token.generation == MAX_GENERATION
    with pytest.raises(GenerationExhausted):
        store.reacquire_above(token, 5, "a:2", 30.0)
    store.release(token)
    for _ in range(2):
        with pytest.raises(GenerationExhausted):
            store.acquire(JOB, "b:2", 30.0)
    assert store.get(JOB).generation == MAX_GENERATION
    with pytest.raises(GenerationExhausted):
        store.raise_above("other", MAX_GENERATION)


def test_operators_reopen_list_and_raise(store: Store) -> None:
    """reopen and raise_above free a job and keep or raise its number; who is above it is left alone."""
    token = store.acquire("b", "a:1", 30.0).token
    store.complete(token, "[1]")
    raised = store.raise_above("b", 7)
    assert (raised.generation, raised.state, raised.owner, raised.result) == (7, "done", None, [1])
    reopened = store.reopen("b")
    assert (reopened.generation, reopened.state, reopened.result) == (7, "open", None)
    held = store.acquire("b", "b:1", 30.0).token
    assert store.raise_above("b", 8).owner == store.raise_above("b", 3).owner == held.owner
    store.renew(held, 30.0)
    assert store.raise_above("b", 9).owner is None
    with pytest.raises(LeaseLost):
        store.renew(held, 30.0)
    store.raise_above("B", 1)
    store.raise_above("é", 1)
    store.raise_above("b%", 1)
    assert [record.job_id for record in store.list("")] == ["B", "b", "b%", "é"]
    assert [record.job_id for record in store.list("b%")] == ["b%"]
    assert store.get("nobody's") is None
    with pytest.raises(KeyError):
        store.reopen("nobody's")
    assert store.acquire("b", "c:1", 30.0).token.generation == 10


@pytest.mark.parametrize("job_id", ["", "a" * 201, "é" * 101, "a\nb", "\ud800"])
def test_a_malformed_job_is_refused_before_anything_is_asked(store: Store, job_id: str) -> None:
    """A job_id has 1 to 200 UTF-8 bytes and no control characters."""
    for call in (lambda: store.acquire(job_id, "a:1", 30.0), lambda: store.raise_above(job_id, 3)):
        with pytest.raises(ValueError, match="job_id"):
            call()


def test_the_longest_texts_fit(store: Store) -> None:
    """200 bytes of job_id and of owner are kept whole and compared bytewise."""
    job_id, owner = "é" * 100, "ü" * 100
    token = store.acquire(job_id, owner, 30.0).token
    store.renew(token, 30.0)
    assert token in store.renew_many([(token, 30.0)]).renewed
    assert store.get(job_id).owner == owner


def test_owner_values_are_never_twice_the_same() -> None:
    """C62: the label is for people; 128 random bits tell two acquisitions apart."""
    assert fresh_owner("worker") != fresh_owner("worker")
    assert fresh_owner(None) != fresh_owner(None)
    assert len(fresh_owner("x" * 160).encode()) <= 200
    with pytest.raises(ValueError, match="owner"):
        check_label("é" * 81)


def race(calls: list[Callable[[], object]]) -> list[object]:
    """Run the calls at once, behind a barrier, and return answers and errors."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_one_of_many_takers_wins(store: Store) -> None:
    """C73: of 16 threads one acquires, the others see LeaseHeld; the numbers have no gaps."""
    rounds = 8
    for generation in range(1, rounds + 1):
        answers = race([partial(store.acquire, JOB, f"t:{i}", 30.0) for i in range(16)])
        won = [answer for answer in answers if isinstance(answer, Grant)]
        assert [grant.token.generation for grant in won] == [generation]
        assert all(isinstance(answer, LeaseHeld) for answer in answers if answer not in won), answers
        store.release(won[0].token)


def test_a_predecessor_and_the_owner_complete_at_once(store: Store) -> None:
    """C01: exactly one of two completions succeeds, the newest owner's, and the result is its own."""
    for i in range(10):
        store.raise_above(JOB, 1)
        store.reopen(JOB)
        old = expired(store, f"a:{i}").token
        new = store.acquire(JOB, f"b:{i}", 30.0).token
        answers = race([partial(store.complete, old, '"old"'), partial(store.complete, new, '"new"')])
        assert isinstance(answers[0], LeaseLost)
        assert answers[1] is None
        assert store.get(JOB).result == "new"


def test_a_pause_before_sending_changes_nothing(url: str, open_store: Callable[..., SqlStore]) -> None:
    """C14: two clients stop between the making of a request and its sending, for longer than the ttl."""
    clients, ttl = [open_store(url) for _ in range(2)], 0.1
    barrier, other = Barrier(2), open_store(url)
    meanwhile = other.acquire("meanwhile", "c:1", 3 * ttl)

    def pause(*_: object) -> None:
        while other.get("meanwhile").remaining > 0:
            pass
        barrier.wait(60)

    for client in clients:
        client.check()
        event.listen(client._here().work, "checkout", pause)  # the statement is made by then
    answers = race([partial(client.acquire, JOB, f"a:{n}", ttl) for n, client in enumerate(clients)])
    won = [answer for answer in answers if isinstance(answer, Grant)]
    # On a slow machine the second may come when the ttl of the first is over.
    assert sorted(grant.token.generation for grant in won) == list(range(1, len(won) + 1))
    assert all(isinstance(answer, LeaseHeld) for answer in answers if answer not in won), answers
    whole = timedelta(seconds=ttl - 0.002)  # less what is rounded
    assert all(grant.lease_until >= meanwhile.lease_until + whole for grant in won)


def test_cleaners_cannot_take_a_new_owners_turn(store: Store) -> None:
    """C20: predecessors that release while another acquires never undo that acquisition."""
    for i in range(10):
        old = expired(store, f"a:{i}").token
        answers = race(
            [
                partial(store.release, old),
                partial(store.release, old),
                partial(store.acquire, JOB, f"c:{i}", 30.0),
            ]
        )
        assert isinstance(answers[2], Grant), answers
        store.renew(answers[2].token, 30.0)
        store.release(answers[2].token)


def test_a_memory_store_stays_in_its_process(child: Callable[..., object]) -> None:
    """A forked child's copy would issue the parent's numbers again: it refuses."""
    script = (
        "import os\nfrom sinkfence.stores.memory import MemoryStore\n"
        "store = MemoryStore()\nstore.acquire('job', 'a:1', 30.0)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        store.get('job')\n"
        "    except Exception as error:\n        print(type(error).__name__, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    assert child(script).hear() == NotEnforced.__name__


@pytest.mark.parametrize("call", ["acquire", "renew", "complete", "get"])
def test_a_memory_store_keeps_a_signals_handler_out(call: str) -> None:
    """It would wait for the call that it has interrupted, which waits for it: it is told so."""
    told: list[Exception] = []

    def clock() -> float:
        signal.raise_signal(signal.SIGUSR1)  # inside of a call: there it is looked at
        return 1.0

    def handler(*_: object) -> None:
        calls = {
            "acquire": lambda: store.acquire("another", "b:1", 30.0),
            "renew": lambda: store.renew(token, 30.0),
            "complete": lambda: store.complete(token, None),
            "get": lambda: store.get(JOB),
        }
        try:
            calls[call]()
        except RuntimeError as error:
            told.append(error)

    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        store = MemoryStore(clock=clock)
        token = store.acquire(JOB, "a:1", 30.0).token
        signal.signal(signal.SIGUSR1, handler)
        store.renew(token, 30.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "signal's handler has interrupted" in str(told[0])
    store.release(token)


# What only databases can have.


def test_missing_tables_say_what_to_run(
    dsn: str, tmp_path: object, open_store: Callable[..., SqlStore]
) -> None:
    """Without the tables every call names create_schema(), which may be run twice."""
    for url in (dsn, f"sqlite:///{tmp_path}/new.db"):
        store = open_store(url)
        with pytest.raises(SchemaMismatch, match="create_schema"):
            store.acquire(JOB, "a:1", 30.0)
        store.create_schema()
        store.create_schema()
        assert store.acquire(JOB, "a:1", 30.0).token.generation == 1


def test_two_workers_may_create_the_schema_at_once(
    dsn: str, tmp_path: object, open_store: Callable[..., SqlStore]
) -> None:
    """Workers that start together all find a schema afterwards."""
    for url in (dsn, f"sqlite:///{tmp_path}/new.db"):
        stores = [open_store(url) for _ in range(4)]
        assert race([store.create_schema for store in stores]) == [None] * 4


def test_a_new_file_that_another_worker_switches_to_wal_is_tried_again(tmp_path: Path) -> None:
    """SQLite doesn't wait there: it answers at once that the file is locked, whatever the timeout."""

    class Busy(sqlite3.Connection):
        __module__ = "sqlite3"
        left = 2

        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql.endswith("= WAL") and self.left:
                self.left -= 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorname = "SQLITE_BUSY"
                raise error
            return super().execute(sql, *args)

    with closing(sqlite3.connect(tmp_path / "new.db", factory=Busy)) as driver:
        sessions.begin(driver, None)
        assert driver.left == 0
        assert driver.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("call", ["renew", "complete", "release"])
def test_creating_the_schema_again_waits_for_nobody(pg: SqlStore, pg_url: str, call: str) -> None:
    """A worker that starts while an owner's transaction is open finds all there, and locks nothing."""
    token = pg.acquire(JOB, "a:1", 30.0).token
    with psycopg.connect(pg_url) as conn:
        {"renew": partial(pg.renew, token, 30.0), "complete": partial(pg.complete, token, None)}.get(
            call, partial(pg.release, token)
        )(conn=conn)
        pg.create_schema()
        conn.execute("LOCK TABLE sinkfence_lease IN ACCESS EXCLUSIVE MODE NOWAIT")
        pg.create_schema()


def test_what_is_missing_is_not_waited_for_without_end(
    pg: SqlStore, admin: psycopg.Connection, pg_url: str
) -> None:
    """A trigger that is gone is put back; while somebody has the table in use, that is said, and soon."""
    admin.execute("DROP TRIGGER sinkfence_lease_delete ON sinkfence_lease")
    with psycopg.connect(pg_url) as conn:
        conn.execute("LOCK TABLE sinkfence_lease IN ROW EXCLUSIVE MODE")
        with pytest.raises(SchemaMismatch, match="keeps them locked"):
            pg.create_schema()
    pg.create_schema()
    with pytest.raises(psycopg.Error, match="not deleted"):
        admin.execute("DELETE FROM sinkfence_lease")


def test_a_newer_schema_is_left_alone(url: str, open_store: Callable[..., SqlStore]) -> None:
    """Tables of a later version are refused, not used nor changed."""
    with open_store(url)._here().work.connect() as connection:
        connection.exec_driver_sql("UPDATE sinkfence_schema SET version = 99")
    store = open_store(url)
    for call in (store.create_schema, lambda: store.get(JOB)):
        with pytest.raises(SchemaMismatch, match="version 99"):
            call()


def test_a_narrow_generation_column_is_refused(pg: SqlStore, admin: psycopg.Connection) -> None:
    """C47: an int4 column would end at 2^31."""
    admin.execute("DROP TRIGGER sinkfence_lease_update ON sinkfence_lease")
    admin.execute("ALTER TABLE sinkfence_lease ALTER generation TYPE int")
    with pytest.raises(SchemaMismatch, match="bigint"):
        pg.acquire(JOB, "a:1", 30.0)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM sinkfence_lease",
        "UPDATE sinkfence_lease SET generation = generation - 1",
        "UPDATE sinkfence_lease SET job_id = 'elsewhere'",
        "UPDATE sinkfence_lease SET generation = 1000000000000000",
        "UPDATE sinkfence_lease SET state = 'banana'",
        "UPDATE sinkfence_lease SET generation = NULL",
    ],
)
def test_the_database_itself_keeps_the_count(
    url: str, open_store: Callable[..., SqlStore], change: str
) -> None:
    """Records can't be deleted and generations not lowered, by whatever SQL."""
    store = open_store(url)
    store.raise_above(JOB, 7)
    with store._here().work.connect() as connection, pytest.raises(Exception, match=r"sinkfence|NULL|null"):
        connection.exec_driver_sql(change)
    assert store.get(JOB).generation == 7


@pytest.mark.parametrize("damage", ["generation = -5", "state = 'x'", "generation = 4e15"])
def test_a_row_edited_to_nonsense_fails_closed(pg: SqlStore, admin: psycopg.Connection, damage: str) -> None:
    """C80: a damaged record is an error that names it, and nobody acquires the job."""
    pg.raise_above(JOB, 7)
    admin.execute("ALTER TABLE sinkfence_lease DISABLE TRIGGER ALL")
    for check in ("generation", "state"):
        admin.execute(f"ALTER TABLE sinkfence_lease DROP CONSTRAINT sinkfence_lease_{check}")
    admin.execute(f"UPDATE sinkfence_lease SET {damage}")
    for call in (lambda: pg.acquire(JOB, "a:1", 30.0), lambda: pg.get(JOB), lambda: pg.list("")):
        with pytest.raises(SchemaMismatch, match="damaged"):
            call()


@pytest.mark.parametrize("until", ["infinity", "12000-01-01", "0044-03-15 BC"])
def test_a_time_that_no_datetime_can_say_hides_no_other_record(
    pg: SqlStore, admin: psycopg.Connection, until: str
) -> None:
    """A job that an operator keeps for ever is held, and listed with the others."""
    for job_id in "ab":
        pg.raise_above(job_id, 7)
    admin.execute("UPDATE sinkfence_lease SET lease_until = %s, owner = 'me' WHERE job_id = 'a'", [until])
    held = {record.job_id: bool(record.remaining) for record in pg.list("")}
    assert held == {"a": "BC" not in until, "b": False}
    if held["a"]:
        with pytest.raises(LeaseHeld, match="me"):
            pg.acquire("a", "a:1", 30.0)
    pg.reopen("a")
    assert pg.acquire("a", "a:1", 30.0).token.generation == 8


def test_the_clock_floor_survives_a_lost_count(url: str, open_store: Callable[..., SqlStore]) -> None:
    """With floor="clock" a store that has lost its rows still issues higher numbers than before."""
    store = open_store(url, floor="clock")
    before = store.acquire(JOB, "a:1", 30.0).token.generation
    with store._here().work.connect() as connection:
        connection.exec_driver_sql("DROP TABLE sinkfence_lease")
        connection.exec_driver_sql("DELETE FROM sinkfence_schema")
    store.create_schema()
    assert store.acquire(JOB, "b:2", 30.0).token.generation > before > 10**11


def test_a_count_ahead_of_the_clock_is_said_to_be(
    url: str, open_store: Callable[..., SqlStore], caplog: pytest.LogCaptureFixture
) -> None:
    """With floor="clock" a stored number ahead of the clock is an error in the log, and still counts up."""
    store = open_store(url, floor="clock")
    store.raise_above(JOB, 10**14)
    assert store.acquire(JOB, "a:1", 30.0).token.generation == 10**14 + 1
    assert "ahead of the store's clock" in caplog.text
