"""The store that counts in a database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal, NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sinkfence import observe
from sinkfence.errors import GenerationExhausted, LeaseHeld, SchemaMismatch, SinkfenceError
from sinkfence.grants import Grant, Record, Renewals
from sinkfence.observe import log
from sinkfence.process import Process, this_process
from sinkfence.stores.sql import records, schema, statements
from sinkfence.stores.sql.attempts import is_blocked, run
from sinkfence.stores.sql.callers import fetch_in
from sinkfence.stores.sql.connections import engine_for, full_url, transaction
from sinkfence.stores.sql.dialects import POSTGRESQL, SQLITE, Query, Row, inside
from sinkfence.stores.sql.records import Change
from sinkfence.stores.sql.sending import send
from sinkfence.terms import boot_time
from sinkfence.tokens import MAX_GENERATION, Token, check_generation, check_job_id

SPARE: Final = 3
"""Connections of the heartbeat that may hang, with room for another one: its `MOST_LEFT_BEHIND`."""

LATEST: Final = 60.0
"""Seconds after an interruption in which what was sent may still be granted, and is given back."""

T = TypeVar("T")
Fetch = Callable[[Query], Sequence[Row]]


@dataclass(slots=True)
class _Engines:
    """Those of one process: a forked child must neither use nor close its parent's connections."""

    work: sa.Engine
    beats: sa.Engine
    checked: bool = False
    """Whether the tables were found to be the right ones."""


@contextmanager
def blocked_is_held(job_id: str) -> Generator[None]:
    """Turn a wait that was too long into LeaseHeld: an open transaction completes or releases the job."""
    try:
        yield
    except DBAPIError as error:
        if is_blocked(error):
            raise LeaseHeld(job_id, None, 0.5) from error
        raise


def checked(grant: Grant, clock: int) -> Grant:
    """Return a grant that the clock was to be the floor of, and log an error if it wasn't."""
    token = grant.token
    if token.generation > clock + 1000:
        observe.fault("ahead-of-clock")
        log.error(
            "job %r: generation %d is ahead of the store's clock (%d): floor='clock' does not protect it",
            token.job_id,
            token.generation,
            clock,
            extra={"job_id": token.job_id, "generation": token.generation},
        )
    return grant


def make_change(change: Change[T], fetch: Fetch, *, provisional: bool = False) -> T:
    """Ask what a change asks. `provisional`: in a transaction of the caller's."""
    rows = fetch(change.query)
    return change.took(rows[0]) if rows else change.explain(fetch(change.look), provisional=provisional)


class SqlStore:
    """Leases in PostgreSQL, or in an SQLite file on one host.

    Give it a URL or an engine; either way it makes connections of its own, on first use, and gives them
    up by `close()`. SQLite's clock is the host's wall clock: a step of it moves expiry, never the fence.

    `floor="clock"` issues the larger of the next number and the milliseconds since 2020 by the database's
    clock, so that a store that lost acknowledged acquisitions (a promoted asynchronous standby, a restored
    backup) does not issue their numbers again, as long as the clocks agree within the time that took.

    Raises:
        ValueError: the URL names neither PostgreSQL, by psycopg or psycopg2, nor an SQLite file.
        ImportError: the driver is not installed.
        SchemaMismatch: any call, while the tables are missing: run `create_schema()` once.
        NotEnforced: any call, where an SQLite database turns out to be no file in WAL mode, but in memory, or
            the client_encoding of PostgreSQL's sessions is SQL_ASCII.
    """

    durable: bool = True

    def __init__(
        self, url_or_engine: str | sa.URL | sa.Engine, *, floor: Literal["clock"] | None = None
    ) -> None:
        if floor not in (None, "clock"):
            raise ValueError('floor must be None or "clock"')
        self._source = url_or_engine if isinstance(url_or_engine, sa.Engine) else full_url(url_or_engine)
        self._by_clock = floor == "clock"
        # By process, without a lock: one that another thread held at the fork would stay held in the child.
        # What is the parent's stays referenced, so that the child does not close it.
        self._processes: dict[Process, _Engines] = {}
        self._dialect = SQLITE if self._here().work.dialect.name == "sqlite" else POSTGRESQL

    def __repr__(self) -> str:
        url = self._here().work.url.set(query={})  # which may hold passwords: libpq's, and of TLS keys
        return f"SqlStore({url.render_as_string()!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SqlStore stays with its process: make one in each, of the same URL")

    @property
    def jumps(self) -> bool:
        """As `Store.jumps`."""
        return self._by_clock

    def create_schema(self) -> None:
        """Create the tables, or bring older ones up to date; nothing happens where they are right.

        They belong to whoever calls this. Another role that works with leases needs `GRANT SELECT, INSERT,
        UPDATE ON sinkfence_lease` and `GRANT SELECT ON sinkfence_schema`, and no more.

        Raises:
            SchemaMismatch: the tables there are newer than this version of sinkfence, or something is missing
                and somebody's transaction keeps them locked.
        """

        def create(connection: sa.Connection) -> None:
            with transaction(connection):
                # Whoever waits for a table's lock has all others, renewals too, wait behind it.
                connection.exec_driver_sql(f"SELECT {self._dialect.wait_2s}")
                schema.create(connection)

        try:
            run(self._here().work, create)
        except DBAPIError as error:
            if is_blocked(error):
                raise SchemaMismatch(
                    "the lease tables lack something, and somebody's transaction keeps them locked: "
                    "end that, and run create_schema() again"
                ) from error
            raise

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        change = statements.acquire(self._dialect, check_job_id(job_id), owner, ttl, by_clock=self._by_clock)
        try:
            with blocked_is_held(job_id):
                grant, clock = self.change(change)
        except (SinkfenceError, SQLAlchemyError):
            raise
        except BaseException:
            # Ctrl-C, or what a signal's handler raises: the server goes on, and may grant it to nobody.
            late = self._here(), job_id, owner, min(ttl, LATEST)
            undo = threading.Thread(target=self._give_back, args=late, name="sinkfence-undoes", daemon=True)
            with suppress(RuntimeError):  # Python may be about to end
                undo.start()
            raise
        return checked(grant, clock) if self._by_clock else grant

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        change = statements.reacquire_above(self._dialect, token, n, owner, ttl, by_clock=self._by_clock)
        return self.change(change)

    def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        return self.change(statements.renew(inside(self._dialect, conn), token, ttl), conn)

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """As `Store.renew_many`."""
        # A batch may have two leases of one job: one that ran out here, unnoticed, and its successor. If the
        # store has gone back in between, even of one number: the owner tells them apart.
        tokens = {(token.job_id, token.generation, token.owner): token for token, _ in wanted}

        def work(fetch: Fetch) -> Renewals:
            rows = fetch(statements.renew_many(self._dialect, wanted))
            renewed = {tokens[row[0], row[1], row[2]]: records.instant(row[3]) for row in rows}
            left = [token for token, _ in wanted if token not in renewed]
            found = fetch(statements.look_many(self._dialect, left)) if left else ()
            return statements.sort_out(renewed, left, found)

        return self._run(work, beat=True)

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        self.change(statements.complete(inside(self._dialect, conn), token, result), conn)

    def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`."""
        self.change(statements.release(inside(self._dialect, conn), token), conn)

    def get(self, job_id: str) -> Record | None:
        """As `Store.get`."""
        rows = self.fetch(records.look(self._dialect, check_job_id(job_id)))
        return records.record(rows[0]) if rows else None

    def list(self, prefix: str) -> Sequence[Record]:
        """As `Store.list`."""
        return [records.record(row) for row in self.fetch(records.look_under(self._dialect, prefix))]

    def reopen(self, job_id: str, *, seen: Record | None = None) -> Record:
        """As `Store.reopen`; where `seen` is given, only if the record is still that one, else Conflict."""
        return self.change(records.reopen(self._dialect, check_job_id(job_id), seen))

    def raise_above(self, job_id: str, n: int, *, seen: Record | None = None) -> Record:
        """As `Store.raise_above`; `seen` as in `reopen`."""
        if check_generation(n) == MAX_GENERATION:
            raise GenerationExhausted
        return self.change(records.raise_above(self._dialect, check_job_id(job_id), n, seen))

    def close(self) -> None:
        """As `Store.close`."""
        here = self._processes.pop(this_process(), None)
        if here is not None:
            here.work.dispose()
            here.beats.dispose()

    @property
    def is_checked(self) -> bool:
        """Whether this process has found the tables to be the right ones."""
        return self._here().checked

    def check(self) -> None:
        """Connect as the heartbeat will, and make sure that the tables are the right ones."""
        self._run(lambda _: None, beat=True)

    def change(self, change: Change[T], conn: object = None) -> T:
        """Make a change, in a transaction of the caller's or of our own."""
        if conn is not None:
            return make_change(change, partial(fetch_in, conn), provisional=True)
        return self._run(partial(make_change, change))

    def fetch(self, query: Query) -> Sequence[Row]:
        """Return the rows of one statement."""
        return self._run(lambda fetch: fetch(query))

    def _give_back(self, here: _Engines, job_id: str, owner: str, seconds: float) -> None:
        until, pause = boot_time() + seconds, 0.1
        # Look more than once: the request may be under way still, or its server process may stand still.
        # `here` is passed by the caller: `_here()` would open a store anew that was closed since.
        while self._processes.get(this_process()) is here:
            with suppress(Exception):  # it is tried again, or runs out
                for row in self.fetch(records.look(self._dialect, job_id, last=True)):
                    if (found := records.record(row)).owner == owner:
                        self.release(Token(job_id, found.generation, owner))
                        return
            if boot_time() + pause > until:
                return
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _run(self, work: Callable[[Fetch], T], *, beat: bool = False) -> T:
        here = self._here()

        def on(connection: sa.Connection) -> T:
            if not here.checked:
                schema.check(connection)
                here.checked = True
            # One statement is one transaction: one round trip, and no moment between BEGIN and COMMIT in
            # which a stopped process would keep SQLite's file locked. What follows it only reads.
            try:
                return work(partial(send, connection))
            finally:
                # The store may have been closed meanwhile, as by a heartbeat that has left this call behind:
                # its pool must not keep the connection.
                if self._processes.get(this_process()) is not here and not connection.invalidated:
                    connection.detach()

        return run(here.beats if beat else here.work, on)

    def _here(self) -> _Engines:
        process = this_process()
        here = self._processes.get(process)
        if here is None:
            made = _Engines(engine_for(self._source), engine_for(self._source, spare=SPARE))
            here = self._processes.setdefault(process, made)
        return here
