"""What a service has answered, in the database that it writes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sinkfence.sinks import RequestState
from sinkfence.tokens import Token
from sinkfence_postgres import connections, plans, statements, watch
from sinkfence_postgres.statements import Query
from sinkfence_postgres.transactions import Attempt, translating


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """The ledger's entry for one request, as statements: looked for first, inserted with the answer.

    In place of an answer may stand a number: the generation whose attempt has ended with an unknown outcome.
    """

    token: Token
    key: str
    fingerprint: str

    def find(self) -> Query:
        """Look for the entry, and try to take its lock, which one attempt has at a time."""
        call = "SELECT free, fingerprint, answer FROM sinkfence.claim(:job_id, :generation, :owner, :key)"
        return Query(call, {**statements.named(self.token), "key": self.key})

    def read(
        self, free: bool, fingerprint: str | None, answer: str | None
    ) -> tuple[RequestState, str | None]:
        """Return what the answer to `find` says."""
        if fingerprint is None:
            return ("run" if free else "in-progress"), None
        if fingerprint != self.fingerprint:
            return "reused", None
        known: str | int | None = json.loads(answer or "null")
        if isinstance(known, str):
            return "answered", known
        if known == self.token.generation:
            return "unknown", None
        return ("run" if free else "in-progress"), None  # of an earlier generation: this one takes it over

    def insert(self, outcome: str | int) -> Query:
        """Enter the outcome, unless a later attempt has entered its answer: this one had lost its lock."""
        return Query(
            "INSERT INTO sinkfence.ledger (scope, key, fingerprint, generation, result)"
            " VALUES (:scope, :key, :fingerprint, :generation,"
            " cast(cast(:outcome AS pg_catalog.text) AS pg_catalog.json))"
            " ON CONFLICT (scope, key) DO UPDATE SET result = excluded.result"
            " WHERE pg_catalog.json_typeof(ledger.result) = 'number' RETURNING 1",
            {
                "scope": f"http:{self.token.job_id}",
                "key": self.key,
                "fingerprint": self.fingerprint,
                "generation": self.token.generation,
                "outcome": json.dumps(outcome),
            },
            rows=None,
        )


class Replay:
    """The answers of a `PostgresSink`, for repetitions of their requests, in the ledger.

    While a request runs, a connection of its own holds the lock of its entry. It does not stay in the pool's
    count: it could be the pool's last one, and the handler would wait for it without end. An attempt that was
    killed is run again: let its effect be a step (`once`), whose result is found then. An attempt that has
    committed something else, and has no answer to keep, is `outcome-unknown` to its own generation.

    Raises:
        ValueError: max_body is no positive number of bytes.
    """

    def __init__(self, connection: Callable[[], AbstractContextManager[Any]], max_body: int) -> None:
        self.max_body: int = positive(max_body)
        self._connection = connection

    @contextmanager
    def claim(self, token: Token, key: str, fingerprint: str) -> Generator[Claim]:
        """As `sinkfence.sinks.Replay.claim`."""
        record = AnswerEntry(token, key, fingerprint)
        with ExitStack() as held:
            conn = held.enter_context(self._own())
            block = held.enter_context(ExitStack())
            block.enter_context(connections.begun(conn))
            with translating(Attempt({token: token}, ours=True)):
                state, answer = record.read(*connections.run(conn, record.find())[0])
            watch.claimed(token, key, fingerprint)
            if state != "run":
                held.close()
            elif not connections.is_psycopg(conn):
                conn.detach()
            yield Claim(record, conn, block, state, answer)

    @contextmanager
    def _own(self) -> Generator[Any]:
        with self._connection() as conn:
            if not connections.is_psycopg(conn):
                yield conn.execution_options(isolation_level="READ COMMITTED")
                return
            where = plans.address(conn)
        import psycopg

        with psycopg.connect(**where) as own:
            own.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield own


class Claim:
    """One request's hold of its entry in the ledger: the transaction that has locked the entry."""

    def __init__(
        self, record: AnswerEntry, conn: Any, block: ExitStack, state: RequestState, answer: str | None
    ) -> None:
        self.state: RequestState = state
        self.answer = answer
        self._record = record
        self._conn = conn
        self._block = block

    def keep(self, answer: str) -> None:
        """Enter the answer, if the token is still the newest at COMMIT."""
        self._enter(answer)

    def leave(self, *, undone: bool) -> None:
        """Keep no answer. Undone: the next attempt runs; else this generation is told `outcome-unknown`."""
        if undone:
            self._block.close()
        else:
            self._enter(self._record.token.generation)

    def _enter(self, outcome: str | int) -> None:
        token = self._record.token
        attempt = Attempt({token: token}, ours=True)
        with translating(attempt), self._block:
            connections.run(self._conn, statements.guard([token]))
            connections.run(self._conn, self._record.insert(outcome))
            attempt.committing = True


def positive(max_body: int) -> int:
    """Return the number of bytes, if it is one."""
    if type(max_body) is not int or max_body < 1:
        raise ValueError("max_body is a number of bytes, at least 1")
    return max_body
