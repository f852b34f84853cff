"""What an error means: refused, unknown, or the driver's own affair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_aio

from sinkfence.errors import (
    GenerationConflict,
    JobMismatch,
    MissingToken,
    NotArmed,
    NotEnforced,
    OutcomeUnknown,
    SinkfenceError,
    StaleToken,
)
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, aio, guard, refusal, transaction, translated


class Proxy:
    """One connection to the server, reset when its COMMIT comes by: on its answer, or undelivered."""

    def __init__(self, dsn: str, *, deliver: bool) -> None:
        self.deliver = deliver
        self.target = urlsplit(dsn).hostname, urlsplit(dsn).port
        self.listener = socket.create_server(("127.0.0.1", 0))
        user = urlsplit(dsn).netloc.rpartition("@")[0]
        port = self.listener.getsockname()[1]
        self.dsn = urlsplit(dsn)._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        try:
            client, _ = self.listener.accept()
        except OSError:  # closed before anybody came
            return
        server = socket.create_connection(self.target)
        answers = threading.Thread(target=self.pump, args=(server, client))
        self.committing = False
        answers.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.committing |= b"COMMIT" in data
                if self.committing and not self.deliver:
                    break
                server.sendall(data)
        self.reset(server)
        answers.join()
        self.reset(client)

    def pump(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if self.committing:  # the answer to COMMIT: it is done, and nobody hears of it
                    break
                client.sendall(data)
        self.reset(client)

    @staticmethod
    def reset(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.shutdown(socket.SHUT_RD)
        sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # close() alone leaves accept() waiting
        self.listener.close()
        self.thread.join()


@pytest.fixture(params=[True, False], ids=["answer lost", "question lost"])
def proxied(request, db):
    """The database behind a proxy that cuts the connection at COMMIT, and whether COMMIT is delivered."""
    proxy = Proxy(db.dsn, deliver=request.param)
    yield type(db)(proxy.dsn), request.param
    proxy.close()


def test_a_commit_without_an_answer_is_unknown(db, token, write, proxied):
    """Connection reset after COMMIT was sent: OutcomeUnknown, whether it was applied or not."""
    behind, applied = proxied
    db.arm(token())
    with pytest.raises(OutcomeUnknown):
        write(token(), "perhaps", to=behind)
    db.arm(token(1))  # waits for a COMMIT that is still under way
    assert db.notes() == (["perhaps"] if applied else [])


def end(db, pid: int) -> None:
    with db.connect(autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s, 10000)", (pid,))


def test_a_session_that_is_ended_inside_commit_is_unknown(db, token):
    """A backend told to stop during COMMIT may have finished it: its 57P01 is no answer."""
    db.arm(token())

    def write(conn: psycopg.Connection) -> None:
        with transaction(conn, token()):
            conn.execute("insert into entry (note) values ('perhaps')")

    with db.connect() as conn, db.connect() as other, ThreadPoolExecutor() as threads:
        other.execute("select sinkfence.arm(%s, %s, 'new')", (token().job_id, token(1).generation))
        writing = threads.submit(write, conn)
        db.wait_until_blocked()  # its check inside COMMIT
        end(db, conn.info.backend_pid)
        with pytest.raises(OutcomeUnknown) as caught:
            writing.result()
    assert caught.value.__cause__.sqlstate == "57P01"


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_connection_lost_before_commit_is_the_drivers_error(db, token, swallowed):
    """Lost inside the block: not unknown, and no success either where the block swallows it."""
    db.arm(token())
    broken = pytest.raises(psycopg.OperationalError)
    with db.connect() as conn, broken as caught, transaction(conn, token()):
        conn.execute("insert into entry (note) values ('lost')")
        end(db, conn.info.backend_pid)
        with contextlib.suppress(psycopg.OperationalError) if swallowed else contextlib.nullcontext():
            conn.execute("select 1")
    assert not isinstance(caught.value, SinkfenceError)
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_farewell_that_has_arrived_before_commit_is_the_drivers_error(db, token, driver):
    """Of a session that was ended while it idled this is known before COMMIT is sent."""
    db.arm(token())
    engine = sa.create_engine(db.url(driver))
    with engine.connect() as conn:
        with pytest.raises(sa.exc.DBAPIError), transaction(conn, token()):
            conn.execute(sa.text("insert into entry (note) values ('lost')"))
            end(db, conn.scalar(sa.text("select pg_backend_pid()")))
    engine.dispose()
    assert db.notes() == []


def test_an_idle_transaction_that_timed_out_is_the_drivers_error(db, token):
    """After idle_in_transaction_session_timeout nothing was applied, and the error says that and no more."""
    db.arm(token())
    with db.connect() as conn:
        with pytest.raises(psycopg.Error), transaction(conn, token()):  # the driver may lose the message
            conn.execute("insert into entry (note) values ('timed out')")
            conn.execute("set local idle_in_transaction_session_timeout = '1ms'")
            gone = "not exists (select from pg_stat_activity where pid = %(pid)s)"
            db.wait_until(gone, pid=conn.info.backend_pid)
    assert db.notes() == []


@pytest.mark.parametrize("kind", ["psycopg", "psycopg pipeline", "sqlalchemy"])
def test_an_aborted_transaction_is_no_success(db, token, kind):
    """An error that the block swallows aborts the transaction: COMMIT would succeed, as a ROLLBACK."""
    db.arm(token())
    if kind == "sqlalchemy":
        engine = sa.create_engine(db.url())
        with engine.connect() as conn, pytest.raises(sa.exc.InternalError) as wrapped:
            with transaction(conn, token()):
                conn.execute(sa.text("insert into entry (note) values ('aborted')"))
                with contextlib.suppress(sa.exc.DBAPIError):
                    conn.execute(sa.text("select 1/0"))
        engine.dispose()
        assert wrapped.value.orig.sqlstate == "25P02"
    else:
        with db.connect() as conn, contextlib.ExitStack() as stack:
            with pytest.raises(psycopg.Error):
                if kind == "psycopg pipeline":
                    stack.enter_context(conn.pipeline())
                with transaction(conn, token()):
                    conn.execute("insert into entry (note) values ('aborted')")
                    with contextlib.suppress(psycopg.Error):
                        conn.execute("select 1/0").fetchone()
    assert db.notes() == []


def test_an_aborted_transaction_is_no_success_with_asyncpg(db, token, asyncpg_session):
    """The same for asyncpg, which does not tell the transaction's status."""
    db.arm(token())

    async def body(session):
        await session.execute(sa.text("insert into entry (note) values ('aborted')"))
        with contextlib.suppress(sa.exc.DBAPIError):
            await session.execute(sa.text("select 1/0"))

    with pytest.raises(sa.exc.DBAPIError) as caught:
        asyncpg_session(token(), body)
    assert caught.value.orig.sqlstate == "25P02"
    assert db.notes() == []


@pytest.fixture
def asyncpg_session(db):
    async def run(bearer, body):
        engine = sa_aio.create_async_engine(db.url("asyncpg"))
        try:
            async with sa_aio.AsyncSession(engine) as session, aio.transaction(session, bearer):
                await body(session)
        finally:
            await engine.dispose()

    return lambda bearer, body: asyncio.run(run(bearer, body))


def test_a_rollback_that_the_user_asks_for_is_quiet(db, token):
    """psycopg.Rollback leaves the block without an error, and nothing was applied."""
    db.arm(token())
    with db.connect() as conn, transaction(conn, token()):
        conn.execute("insert into entry (note) values ('rolled back')")
        raise psycopg.Rollback
    assert db.notes() == []


def test_a_commit_inside_the_block_is_refused(db, token):
    """What followed a commit of the user's own would be unguarded: the drivers' blocks don't allow it."""
    db.arm(token())
    with db.connect() as conn, pytest.raises(psycopg.ProgrammingError), transaction(conn, token()):
        conn.commit()
    engine = sa.create_engine(db.url())
    with sa.orm.Session(engine) as session, pytest.raises(sa.exc.InvalidRequestError):
        with transaction(session, token()):
            session.commit()
    with engine.connect() as conn, pytest.raises(sa.exc.InvalidRequestError), transaction(conn, token()):
        conn.rollback()
    engine.dispose()


def test_the_users_own_database_error_passes_untouched(db, token):
    """A unique violation, at once or deferred to COMMIT, stays the driver's own error."""
    db.arm(token())
    with db.connect() as conn:
        conn.execute("create temp table once (n int unique deferrable initially deferred)")
        conn.commit()
        with pytest.raises(psycopg.errors.UniqueViolation), transaction(conn, token()):
            conn.execute("insert into once values (1), (1)")
        with pytest.raises(psycopg.errors.UndefinedFunction), transaction(conn, token()):
            conn.execute("select no_such_function()")


def test_an_open_transaction_is_refused(db, token):
    """`transaction` begins by itself: on an open one it would commit earlier writes that are not its own."""
    db.arm(token())
    with db.connect() as conn:
        conn.execute("select 1")
        with pytest.raises(NotEnforced, match="open here already"), transaction(conn, token()):
            pytest.fail("entered")
        with pytest.raises(psycopg.Error):
            conn.execute("select 1/0")
        with pytest.raises(NotEnforced), transaction(conn, token()):
            pytest.fail("entered")
    with db.connect() as conn, conn.pipeline():
        conn.execute("insert into entry (note) values ('earlier')")
        with pytest.raises(NotEnforced), transaction(conn, token()):
            pytest.fail("entered")
        conn.rollback()
    engine = sa.create_engine(db.url())
    with engine.connect() as conn, sa.orm.Session(engine) as session:
        conn.execute(sa.text("select 1"))
        session.execute(sa.text("select 1"))
        for tx in (conn, session):
            with pytest.raises(NotEnforced), transaction(tx, token()):
                pytest.fail("entered")
    engine.dispose()


def test_a_guard_in_autocommit_is_refused(db, token):
    """In autocommit a guard would be over before the write begins."""
    db.arm(token())
    with db.connect(autocommit=True) as conn:
        with pytest.raises(NotEnforced, match="autocommit"):
            guard(conn, token())
        with conn.pipeline(), pytest.raises(NotEnforced, match="autocommit"):
            guard(conn, token())
        with conn.transaction():
            guard(conn, token())
        with conn.pipeline(), conn.transaction():
            guard(conn, token())
    for options in (
        {"isolation_level": "AUTOCOMMIT"},
        {"execution_options": {"isolation_level": "AUTOCOMMIT"}},
    ):
        for driver in ("psycopg", "psycopg2"):
            engine = sa.create_engine(db.url(driver), **options)
            with engine.connect() as conn, sa.orm.Session(engine) as session:
                for tx in (conn, session):
                    with pytest.raises(NotEnforced, match="autocommit"):
                        guard(tx, token())
                    tx.rollback()
                    with pytest.raises(NotEnforced, match="autocommit"), transaction(tx, token()):
                        pytest.fail("entered")
            engine.dispose()


def raised(db, code: str, detail: object) -> psycopg.Error:
    with db.connect() as conn, pytest.raises(psycopg.Error) as caught:
        using = f"using errcode = '{code}', detail = '{json.dumps(detail)}'"
        conn.execute(f"do $$ begin raise exception 'said so' {using}; end $$")
    return caught.value


def test_refusal_reads_every_code(db):
    """Each SQLSTATE of ours becomes the error that it is, with its data, and can be pickled."""
    token = Token("a", 7, "me")
    facts = {"job_id": "a", "generation": 7, "owner": "me", "mark": 8, "same_owner": False}
    cases = [
        ("SF001", facts, StaleToken),
        ("SF001", {**facts, "mark": 7}, GenerationConflict),
        ("SF002", {}, MissingToken),
        ("SF003", {**facts, "mark": None}, NotArmed),
        ("SF004", {**facts, "belongs_to": "b"}, JobMismatch),
        ("SF009", {}, SinkfenceError),
    ]
    for code, detail, kind in cases:
        error = refusal(raised(db, code, detail))
        assert type(error) is kind
        assert type(pickle.loads(pickle.dumps(error))) is kind
        if hasattr(error, "token"):
            assert error.token == token
    assert refusal(raised(db, "SF004", {**facts, "belongs_to": "b"})).job_id == "b"


def test_refusal_leaves_other_errors_alone(db):
    """Other codes, other people's use of ours, and errors without a code are no refusals."""
    assert refusal(raised(db, "P0001", {})) is None
    assert refusal(raised(db, "SF001", {"something": "else"})) is None
    assert refusal(raised(db, "SF001", "text")) is None
    assert refusal(ValueError("no database at all")) is None
    wrapped = ValueError("the user's own")
    wrapped.__cause__ = raised(db, "SF001", {"job_id": "a", "generation": 7, "owner": "o", "mark": 8})
    assert refusal(wrapped) is None


def test_translated_passes_what_it_does_not_know(db):
    """`translated` changes refusals only."""
    with pytest.raises(ZeroDivisionError), translated():
        _ = 1 / 0
    with db.connect() as conn, pytest.raises(psycopg.errors.DivisionByZero), translated():
        conn.execute("select 1/0")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 1}], ids=str)
def test_every_token_is_guarded_where_results_are_streamed(db, token, driver, options):
    """Options that make statements into server-side cursors, read row by row, don't reach the guard."""
    first, second = token(job_id="streamed/a"), token(job_id="streamed/b")
    with db.engine(driver) as engine, engine.execution_options(**options).connect() as conn:
        PostgresSink(engine.execution_options(**options)).arm(first)
        db.arm(token(1, job_id="streamed/b"))
        with pytest.raises(StaleToken), transaction(conn, first, second):
            pytest.fail("the second token was not judged")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_every_token_is_guarded_where_results_are_streamed_asynchronously(db, token, driver):
    """The same for an asynchronous engine."""
    first, second = token(job_id="streamed/a"), token(job_id="streamed/b")

    async def run() -> None:
        async with db.async_engine(driver) as engine:
            streaming = engine.execution_options(stream_results=True)
            await aio.PostgresSink(streaming).arm(first)
            async with streaming.connect() as conn, aio.transaction(conn, first, second):
                pytest.fail("the second token was not judged")

    db.arm(token(1, job_id="streamed/b"))
    with pytest.raises(StaleToken):
        db.run(run())


def in_psycopg(db, bearer, end, take_over) -> None:
    with db.connect() as conn, transaction(conn, bearer):
        conn.execute(end)
        take_over()
        conn.execute("insert into entry (note) values ('late')")


def in_session(db, bearer, end, take_over) -> None:
    with db.engine() as engine, sa.orm.Session(engine) as session, transaction(session, bearer):
        session.execute(sa.text(end))
        take_over()
        session.execute(sa.text("insert into entry (note) values ('late')"))


def behind_sqlalchemy(db, bearer, end, take_over) -> None:
    with db.engine() as engine, engine.connect() as conn, transaction(conn, bearer):
        getattr(conn.connection, end.lower())()
        take_over()
        conn.execute(sa.text("insert into entry (note) values ('late')"))


def by_a_shared_connection(db, bearer, end, take_over) -> None:
    engine = sa.create_engine(db.url(), poolclass=sa.StaticPool)
    with contextlib.closing(engine.raw_connection().driver_connection):
        with engine.connect() as conn, transaction(conn, bearer):
            with contextlib.suppress(psycopg.ProgrammingError):  # and the one connection is reset
                PostgresSink(engine).arm(Token(f"{bearer.job_id} and another", 1, "o"))
            take_over()
            conn.execute(sa.text("insert into entry (note) values ('late')"))


def in_async_psycopg(db, bearer, end, take_over) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(db.dsn) as conn, aio.transaction(conn, bearer):
            await conn.execute(end)
            take_over()
            await conn.execute("insert into entry (note) values ('late')")

    db.run(run())


@pytest.mark.parametrize("end_it", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(
    "write", [in_psycopg, in_session, behind_sqlalchemy, by_a_shared_connection, in_async_psycopg]
)
def test_a_transaction_that_replaced_the_guarded_one_is_rolled_back(db, token, write, end_it):
    """Ended behind the driver's back, the guarded transaction was followed by another: that never commits."""
    db.arm(token())
    with pytest.raises(NotEnforced, match="has ended"):
        write(db, token(), end_it, lambda: db.arm(token(1)))
    assert db.notes() == []


@pytest.mark.parametrize("kind", ["psycopg in autocommit", "psycopg2", "asyncpg"])
def test_a_guarded_transaction_that_has_ended_is_told_where_nothing_can_be_rolled_back(db, token, kind):
    """Where each statement after a COMMIT of the user's own is a transaction by itself, the block fails."""
    db.arm(token())

    async def with_asyncpg() -> None:
        async with db.async_engine("asyncpg") as engine, engine.connect() as conn:
            async with aio.transaction(conn, token()):
                await conn.execute(sa.text("COMMIT"))

    with pytest.raises(NotEnforced, match="has ended"):
        if kind == "asyncpg":
            db.run(with_asyncpg())
        elif kind == "psycopg2":
            with db.engine(kind) as engine, engine.connect() as conn, transaction(conn, token()):
                conn.execute(sa.text("COMMIT"))
        else:
            with db.connect(autocommit=True) as conn, transaction(conn, token()):
                conn.execute("COMMIT")


def test_a_guard_of_some_of_the_tokens_is_not_enough(db, token):
    """Each token of a block must be guarded in the very transaction that is about to commit."""
    one, other = token(), token(job_id="not guarded again")
    db.arm(one)
    db.arm(other)
    with db.connect() as conn, pytest.raises(NotEnforced, match="not guarded again"):
        with transaction(conn, one, other):
            conn.execute("commit")
            guard(conn, one)


ABORTED = "the guarded transaction was rolled back"


@pytest.mark.parametrize("kind", ["psycopg", "connection", "session", "psycopg2"])
def test_an_own_commit_of_an_aborted_transaction_is_no_success(db, token, kind):
    """`translated` does not believe a COMMIT that has rolled back what an error had aborted."""
    db.arm(token())
    with contextlib.ExitStack() as stack:
        if kind == "psycopg":
            tx, sql = stack.enter_context(db.connect()), str
        else:
            engine = stack.enter_context(db.engine("psycopg2" if kind == "psycopg2" else "psycopg"))
            tx = stack.enter_context(engine.connect() if kind == "connection" else sa.orm.Session(engine))
            sql = sa.text
        other = stack.enter_context(db.connect())
        guard(other, token())
        guard(tx, token())
        tx.execute(sql("insert into entry (note) values ('aborted')"))
        with contextlib.suppress(psycopg.Error, sa.exc.DBAPIError):
            tx.execute(sql("select 1/0"))
        with translated():
            other.commit()  # another's is its own affair
        with pytest.raises(SinkfenceError, match=ABORTED), translated():
            tx.commit()
        with translated():
            tx.commit()  # of nothing
    assert db.notes() == []


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_an_own_commit_of_an_aborted_transaction_is_no_success_asynchronously(db, token, driver):
    """The same with an event loop; asyncpg does not tell, so the server is asked."""
    db.arm(token())

    async def run() -> None:
        async with db.async_engine(driver) as engine, sa_aio.AsyncSession(engine) as session:
            await aio.guard(session, token())
            await session.execute(sa.text("insert into entry (note) values ('aborted')"))
            with contextlib.suppress(sa.exc.DBAPIError):
                await session.execute(sa.text("select 1/0"))
            async with aio.translated():
                await session.commit()

    with pytest.raises(SinkfenceError, match=ABORTED):
        db.run(run())
    assert db.notes() == []


def test_a_guard_of_another_task_is_left_alone(db, token):
    """A task that commits does not ask on the connection of the task that has started it."""
    db.arm(token())

    async def commit(engine) -> None:
        async with sa_aio.AsyncSession(engine) as session:
            await aio.guard(session, token())
            async with aio.translated():
                await session.commit()

    async def run() -> None:
        async with db.async_engine("asyncpg") as engine, sa_aio.AsyncSession(engine) as session:
            await aio.guard(session, token())
            busy = asyncio.gather(session.execute(sa.text("select pg_sleep(0.1)")), commit(engine))
            await asyncio.gather(busy, commit(engine))
            async with aio.translated():
                await session.commit()

    db.run(run())
