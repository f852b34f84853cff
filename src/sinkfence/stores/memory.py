"""A store that lives as long as its process: for tests, and to try things out."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sinkfence.errors import GenerationExhausted, JobCompleted, LeaseHeld, NotEnforced
from sinkfence.grants import Grant, Record, Renewals, State, is_settled, lease_lost
from sinkfence.process import this_process
from sinkfence.terms import Clock, boot_time
from sinkfence.tokens import MAX_GENERATION, Token, check_generation, check_job_id, check_text


@dataclass(slots=True)
class _Row:
    generation: int = 0
    owner: str | None = None
    until: float = float("-inf")
    state: State = "open"
    result: str | None = None

    def held_by(self, token: Token) -> bool:
        return (self.owner, self.generation, self.state) == (token.owner, token.generation, "open")

    def free(self) -> None:
        self.owner, self.until = None, float("-inf")


class MemoryStore:
    """Counts in this process, by this process's clock, and forgets all of it at its end.

    So it refuses, by way of `durable`, to arm a sink that lives on: after a restart it would count from 1
    again below the sink's mark.

    Raises:
        NotEnforced: any call in a forked child. Two copies would issue the same numbers.
        RuntimeError: a signal's handler calls while the thread that it has interrupted is inside a call.
    """

    durable: bool = False
    jumps: bool = False

    def __init__(self, *, clock: Clock = boot_time) -> None:
        self._clock = clock
        # Only for show: times go out as instants, and are compared as the clock's seconds.
        self._epoch = datetime.now(UTC) - timedelta(seconds=clock())
        self._rows: dict[str, _Row] = {}
        # An RLock knows which thread holds it: a signal's handler would wait for the one that it runs on.
        self._lock = threading.RLock()
        self._process = this_process()

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        job_id, owner = check_job_id(job_id), check_text("owner", owner)
        with self._locked():
            row, now = self._rows.setdefault(job_id, _Row()), self._clock()
            if row.state == "done":
                raise JobCompleted(job_id, row.result and json.loads(row.result))
            if row.until > now:
                raise LeaseHeld(job_id, row.owner, row.until - now)
            return self._grant(job_id, row, row.generation + 1, owner, ttl)

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        owner = check_text("owner", owner)
        with self._locked():
            row = self._rows.get(token.job_id)
            if row is None or not row.held_by(token):
                return None
            return self._grant(token.job_id, row, max(row.generation, n) + 1, owner, ttl)

    def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        self._refuse(conn)
        with self._locked():
            row = self._held(token)
            row.until = self._clock() + ttl
            return self._instant(row.until)

    def renew_many(self, wanted: Sequence[tuple[Token, float]]) -> Renewals:
        """As `Store.renew_many`; nothing is ever skipped here."""
        renewed: dict[Token, datetime] = {}
        settled: set[Token] = set()
        lost: dict[Token, str] = {}
        with self._locked():
            for token, ttl in wanted:
                row = self._rows.get(token.job_id, _Row())
                if row.held_by(token):
                    row.until = self._clock() + ttl
                    renewed[token] = self._instant(row.until)
                elif is_settled(token, row.generation, row.owner, row.state):
                    settled.add(token)
                else:
                    lost[token] = f"generation {row.generation} was issued"
        return Renewals(renewed, frozenset(settled), lost)

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        self._refuse(conn)
        with self._locked():
            row = self._rows.get(token.job_id, _Row())
            again = (row.owner, row.generation, row.state) == (token.owner, token.generation, "done")
            if again and row.result == result:
                return
            row = self._held(token)
            row.state, row.result, row.until = "done", result, float("-inf")

    def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`."""
        self._refuse(conn)
        with self._locked():
            row = self._rows.get(token.job_id, _Row())
            if not is_settled(token, row.generation, row.owner, row.state):
                self._held(token).free()

    def get(self, job_id: str) -> Record | None:
        """As `Store.get`."""
        job_id = check_job_id(job_id)
        with self._locked():
            row = self._rows.get(job_id)
            return None if row is None else self._record(job_id, row)

    def list(self, prefix: str) -> Sequence[Record]:
        """As `Store.list`."""
        with self._locked():
            rows = sorted(self._rows.items(), key=lambda item: item[0].encode())
            return [self._record(job_id, row) for job_id, row in rows if job_id.startswith(prefix)]

    def reopen(self, job_id: str) -> Record:
        """As `Store.reopen`."""
        job_id = check_job_id(job_id)
        with self._locked():
            row = self._rows[job_id]
            row.free()
            row.state, row.result = "open", None
            return self._record(job_id, row)

    def raise_above(self, job_id: str, n: int) -> Record:
        """As `Store.raise_above`."""
        if check_generation(n) == MAX_GENERATION:
            raise GenerationExhausted()
        job_id = check_job_id(job_id)
        with self._locked():
            row = self._rows.setdefault(job_id, _Row())
            if row.generation < n:
                row.generation = n
                row.free()
            return self._record(job_id, row)

    def close(self) -> None:
        """Do nothing: there is no connection, and the count is kept."""

    def _locked(self) -> AbstractContextManager[object]:
        if this_process() != self._process:
            raise NotEnforced(
                "a MemoryStore does not outlive fork: the child would issue the parent's numbers again. "
                "Use SqlStore"
            )
        # There is no public way to ask. Entered again, the lock would let the handler's call come between a
        # look at a record and its change, and one number would be issued twice.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "a signal's handler has interrupted a call of this MemoryStore, and may not make another: "
                "have it set a flag, or use SqlStore"
            )
        return self._lock

    def _grant(self, job_id: str, row: _Row, generation: int, owner: str, ttl: float) -> Grant:
        if generation > MAX_GENERATION:
            raise GenerationExhausted()
        row.generation, row.owner, row.until = generation, owner, self._clock() + ttl
        return Grant(Token(job_id, generation, owner), self._instant(row.until))

    def _held(self, token: Token) -> _Row:
        row = self._rows.get(token.job_id)
        if row is None or not row.held_by(token):
            raise lease_lost(token, None if row is None else self._record(token.job_id, row))
        return row

    def _record(self, job_id: str, row: _Row) -> Record:
        free = row.until == float("-inf")
        left = None if free else max(row.until - self._clock(), 0.0)
        until = None if free else self._instant(row.until)
        result = row.result and json.loads(row.result)
        return Record(job_id, row.generation, row.state, row.owner, until, left, result)

    def _instant(self, until: float) -> datetime:
        return self._epoch + timedelta(seconds=until)

    @staticmethod
    def _refuse(conn: object) -> None:
        if conn is not None:
            raise TypeError("a MemoryStore takes part in no transaction: leave conn out")
