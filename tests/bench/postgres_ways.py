"""How a client makes one transaction that writes a row: unguarded, guarded, and by the simple checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import psycopg

from sinkfence.tokens import Token
from sinkfence_postgres import guard, transaction

CLIENTS = 8
GENERATION = 3_000_000_001
TABLES = """
create table doc (id int primary key, body text not null, generation bigint not null default 0)
  with (fillfactor = 50);
insert into doc select n, '' from generate_series(0, 999) n;
create table simple_mark (job text primary key, generation bigint not null) with (fillfactor = 50);
"""
WRITE = "update doc set body = 'body' where id = %s"
WRITE_IF = "update doc set body = 'body', generation = %s where id = %s and generation <= %s"
LOOK = "select 1 from simple_mark where job = %s and generation <= %s"
UPSERT = (
    "insert into simple_mark as m values (%s, %s) on conflict (job) do update "
    "set generation = excluded.generation where m.generation <= excluded.generation"
)

Way = Callable[[psycopg.Connection, Token, int, Callable[[], None]], None]
"""How a client makes one transaction: a connection in autocommit, its token, the row to write, the work."""


def token(job: int, generation: int = GENERATION) -> Token:
    return Token(f"bench/{job}", generation, "bench:owner")


def bare(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    with conn.transaction():
        work()
        conn.execute(WRITE, (row,))


def guarded(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    with transaction(conn, mine):
        work()
        conn.execute(WRITE, (row,))


def locked(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    with conn.transaction():
        guard(conn, mine, lock=True)
        work()
        conn.execute(WRITE, (row,))


def row_column(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    with conn.transaction():
        work()
        assert conn.execute(WRITE_IF, (mine.generation, row, mine.generation)).rowcount


def a_look(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None], lock: str = "") -> None:
    with conn.transaction():
        assert conn.execute(LOOK + lock, (mine.job_id, mine.generation)).rowcount
        work()
        conn.execute(WRITE, (row,))


def for_share(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    a_look(conn, mine, row, work, " for share")


def upsert(conn: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
    with conn.transaction():
        assert conn.execute(UPSERT, (mine.job_id, mine.generation)).rowcount
        work()
        conn.execute(WRITE, (row,))


WAYS: Mapping[str, Way] = {
    "unguarded": bare,
    "transaction()": guarded,
    "guard(lock=True)": locked,
    "row column": row_column,
    "SELECT, then write (unsafe)": a_look,
    "SELECT FOR SHARE": for_share,
    "upsert <= as the guard": upsert,
}


class Clients:
    """Several connections to one database, each used by a thread of its own."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self.connections = [
            stack.enter_context(psycopg.connect(dsn, autocommit=True)) for _ in range(CLIENTS)
        ]
        self.threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))

    def run(self, way: Way, jobs: int, times: int, work: Callable[[], None]) -> None:
        """Let each client make so many transactions of jobs drawn at random, on a row of its own."""

        def client(number: int) -> None:
            drawn = random.Random(number)
            for _ in range(times):
                way(self.connections[number], token(drawn.randrange(jobs)), number, work)

        list(self.threads.map(client, range(CLIENTS)))

    def on_each_thread(self, call: Callable[[], None]) -> None:
        """Call it once on every thread."""
        together = Barrier(CLIENTS)

        def once() -> None:
            together.wait()
            call()

        for each in [self.threads.submit(once) for _ in range(CLIENTS)]:
            each.result()
