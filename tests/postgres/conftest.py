"""A fenced database, and the servers, tables and tokens of the tests in it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_aio

import sinkfence_postgres
from sinkfence.tokens import Token
from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.postgres import PostgresServer, postgres

sys.path.insert(0, str(Path(__file__).parent))

from writers import WRITERS, Between

FIRST = 3_000_000_001
"""Above 2^31 and 2^32's half: no part may keep a generation in 32 bits."""


@dataclass
class Holder:
    """A bearer that remembers what it was told."""

    token: Token
    heard: list[Exception] = field(default_factory=list)

    def lose(self, reason: Exception) -> None:
        self.heard.append(reason)


class Database:
    """A database with sinkfence installed and a table `entry` to write to."""

    def __init__(self, dsn: str, loop: asyncio.Runner | None = None) -> None:
        self.dsn = dsn
        self.loop = loop
        """Where given, engines are kept from test to test, the asynchronous ones on this loop."""
        self.engines: dict[str, Any] = {}

    def url(self, driver: str = "psycopg") -> str:
        return self.dsn.replace("postgresql://", f"postgresql+{driver}://", 1)

    @contextlib.contextmanager
    def engine(self, driver: str = "psycopg") -> Iterator[sa.Engine]:
        engine = self.engines.get(driver) or sa.create_engine(self.url(driver))
        if self.loop:
            self.engines[driver] = engine
        try:
            yield engine
        finally:
            if not self.loop:
                engine.dispose()

    @contextlib.asynccontextmanager
    async def async_engine(self, driver: str = "psycopg") -> Any:
        engine = self.engines.get(f"async {driver}") or sa_aio.create_async_engine(self.url(driver))
        if self.loop:
            self.engines[f"async {driver}"] = engine
        try:
            yield engine
        finally:
            if not self.loop:
                await engine.dispose()

    def run(self, coroutine: Any) -> Any:
        return self.loop.run(coroutine) if self.loop else asyncio.run(coroutine)

    def close(self) -> None:
        for name, engine in self.engines.items():
            if name.startswith("async"):
                self.loop.run(engine.dispose())
            else:
                engine.dispose()
        self.admin.close()

    @functools.cached_property
    def admin(self) -> psycopg.Connection[Any]:
        """A connection in autocommit to look on with."""
        return self.connect(autocommit=True)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, **options)

    def arm(self, token: Token) -> None:
        with self.engine() as engine:
            sinkfence_postgres.PostgresSink(engine).arm(token)

    def notes(self) -> list[str]:
        return [note for (note,) in self.admin.execute("select note from entry order by id")]

    def mark(self, job_id: str) -> tuple[int, str] | None:
        select = "select max_generation, owner from sinkfence.mark where job_id = %s"
        return self.admin.execute(select, (job_id,)).fetchone()

    def wait_until(self, condition: str, **params: Any) -> None:
        """Wait until the server sees this; fail where it never does."""
        for _ in range(5000):
            if self.admin.execute(f"select {condition} from pg_sleep(0.005)", params).fetchone()[0]:
                return
        pytest.fail(f"never seen: {condition}")

    def wait_until_blocked(self, count: int = 1) -> None:
        """Wait until so many sessions of this database wait for a lock."""
        self.wait_until(
            "(select count(*) from pg_locks l join pg_stat_activity a using (pid)"
            " where not l.granted and a.datname = current_database()) >= %(count)s",
            count=count,
        )


@pytest.fixture(scope="session")
def shared(postgres_server: Any) -> Iterator[Database]:
    dsn = postgres_server.create_database()
    with asyncio.Runner() as loop:
        database = Database(dsn, loop)
        prepare(database)
        yield database
        database.close()
    postgres_server.drop_database(dsn)


@pytest.fixture
def db(shared: Database) -> Database:
    """The database of most tests, with an empty `entry`; each test has a job of its own."""
    shared.admin.execute("truncate entry")
    return shared


@pytest.fixture
def own_db(dsn: str) -> Iterator[Database]:
    """A database for this test alone, which may break it."""
    database = Database(dsn)
    prepare(database)
    yield database
    database.close()


@pytest.fixture
def elsewhere(own_server: PostgresServer) -> Iterator[Database]:
    """A database on `own_server`."""
    dsn = own_server.create_database()
    database = Database(dsn)
    prepare(database)
    yield database
    database.close()
    own_server.drop_database(dsn)


@pytest.fixture(scope="session", params=["repeatable read", "serializable"])
def strict(request: pytest.FixtureRequest, shared: Database, postgres_server: Any) -> Iterator[Database]:
    """A database in which each transaction has this isolation, whoever begins it."""
    dsn = postgres_server.create_database()
    name = dsn.rpartition("/")[2]
    shared.admin.execute(f"alter database {name} set default_transaction_isolation = '{request.param}'")
    database = Database(dsn, shared.loop)
    prepare(database)
    yield database
    database.close()
    postgres_server.drop_database(dsn)


def prepare(database: Database) -> None:
    sinkfence_postgres.install(database.admin)
    database.admin.execute(
        "create table entry (id bigint generated by default as identity primary key, note text)"
    )


@pytest.fixture
def token() -> Callable[..., Token]:
    """Make tokens of a job of this test: `token()` is the first generation, `token(1)` its successor's."""
    job = f"reports/{secrets.token_hex(6)}"

    def make(later: int = 0, *, job_id: str = job, owner: str | None = None) -> Token:
        return Token(job_id, FIRST + later, owner or f"worker-{later}:nonce")

    return make


@pytest.fixture
def holder() -> type[Holder]:
    return Holder


SCRATCH = """
drop schema if exists simple cascade;
create schema simple;
create table simple.mark (job text primary key, generation bigint not null);
create table simple.entry (generation bigint not null);
create table simple.child (job text references simple.mark);
create table simple.invoice (id int primary key, generation bigint not null);
insert into simple.mark values ('job', 7);
insert into simple.invoice values (1, 7), (2, 7);
"""


@pytest.fixture(scope="session")
def own_server() -> Iterator[PostgresServer]:
    """A server for what the others aren't set up for: prepared transactions, a WAL that can be decoded.

    Of a PostgreSQL that has test_decoding, where there is one: Debian's has, the wheels' haven't.
    """
    trees = [binaries.find_postgres(), *sorted(Path("/usr/lib/postgresql").glob("*"), reverse=True)]
    tree = next((tree for tree in trees if list(tree.glob("lib/**/test_decoding.so"))), trees[0])
    with postgres(tree=tree, settings={"wal_level": "logical", "max_prepared_transactions": "10"}) as server:
        yield server


class Simple:
    """Tables for the simple checks that fail: the job is owned by generation 7, then by 8.

    What a stale write is, is a 7 after an 8.
    """

    RAISE = "update simple.mark set generation = 8"
    LOOK = "select generation <= 7 from simple.mark"

    def __init__(self, db: Database) -> None:
        self.db = db

    def entries(self) -> list[int]:
        """The generations of what was written, in the order in which it was."""
        return [g for (g,) in self.db.admin.execute("select generation from simple.entry order by ctid")]

    def begin(self, conn: psycopg.Connection[Any], isolation: str = "read committed") -> None:
        """Begin a transaction on a connection in autocommit."""
        conn.execute(f"begin isolation level {isolation}; set local lock_timeout = '20s'")

    def answer(self, conn: psycopg.Connection[Any], *statements: str) -> Any:
        """Execute statements; the first column of what the last of them that answers has answered."""
        rows = [cursor.fetchone() for each in statements if (cursor := conn.execute(each)).description]
        return rows[-1][0] if rows and rows[-1] else None


@pytest.fixture
def simple(db: Database) -> Iterator[Simple]:
    """Scratch tables of the simple checks, in the schema `simple`."""
    db.admin.execute(SCRATCH)
    yield Simple(db)
    db.admin.execute("drop schema simple cascade")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads to wait in."""
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.__name__)
def write(request: pytest.FixtureRequest, db: Database) -> Callable[..., None]:
    """Write one row in a guarded transaction, by each kind of connection: `write(bearer, note, between)`."""

    def run(
        bearer: Any, note: str = "row", between: Between = lambda: None, *, to: Database | None = None
    ) -> None:
        to = to or db
        result = request.param(to, bearer, note, between)
        if result is not None:
            to.run(result)

    return run
