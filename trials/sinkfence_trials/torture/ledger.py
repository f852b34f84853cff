"""PostgreSQL as a worker uses it: a table that is written to in guarded transactions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg

from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_postgres import PostgresSink, once, transaction
from sinkfence_trials.torture.destinations import Seen, Write

SETTINGS: Final[tuple[LiteralString, ...]] = (
    "SET idle_in_transaction_session_timeout = '1s'",
    "SET lock_timeout = '3s'",
)
"""What bounds the wait for an owner that is frozen inside a transaction: without it, its whole pause."""

INSERT: Final = """
    INSERT INTO torture_entry (job_id, generation, owner, id, base, key, filling)
    VALUES (%s, %s, %s, %s, %s, %s, %s)"""


class Ledger:
    """A table, in transactions that are refused at their COMMIT. One connection, until it breaks."""

    durable: bool = True

    def __init__(self, dsn: str, settings: tuple[LiteralString, ...] = (), *, fenced: bool = True) -> None:
        self._dsn, self._settings = dsn, settings
        self.fenced: bool = fenced
        self._conn: psycopg.Connection[Any] | None = None

    def arm(self, bearer: Bearer) -> None:
        PostgresSink(self._dsn).arm(bearer)

    def read(self, token: Token) -> Seen:
        query = "SELECT (array_agg(id ORDER BY seq DESC))[1], count(*) FROM torture_entry WHERE job_id = %s"
        with self._connection() as conn, conn.transaction():
            row = conn.execute(query, (token.job_id,)).fetchone()
        assert row is not None
        return Seen(*row)

    def write(self, token: Token, write: Write) -> str:
        key = token.key(write.step)
        row = (token.job_id, token.generation, token.owner, write.id, write.base.last, key, write.filling)
        with self._connection() as conn:

            def insert() -> str:
                conn.execute(INSERT, row)
                return write.id

            if not self.fenced:
                with conn.transaction():
                    return insert()
            with transaction(conn, token):
                return str(once(conn, token, write.step, insert))

    @contextmanager
    def _connection(self) -> Generator[psycopg.Connection[Any]]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._dsn, prepare_threshold=None)  # a pooler may be in between
            if self._settings:
                with self._conn.transaction():
                    for setting in self._settings:
                        self._conn.execute(setting)
        try:
            yield self._conn
        except BaseException:
            self._conn.close()
            raise
