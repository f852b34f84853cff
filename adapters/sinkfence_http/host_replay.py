"""What a host has answered, in a SQLite file, and which of its attempts still run."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sinkfence.errors import StaleToken
from sinkfence.process import this_process
from sinkfence.sinks import RequestState
from sinkfence.tokens import Token
from sinkfence_http import files

WAIT: Final = 5.0
"""Seconds that a process waits for others to be done with the file."""

TABLE: Final = """
create table if not exists record (
  key text primary key, fingerprint text not null, generation integer not null, attempt text not null,
  answer text, created_at text not null default current_timestamp) without rowid
"""


class HostReplay:
    """The answers of a `HostGate`, for repetitions of their requests.

    An attempt that ended without an answer to keep, or was killed, is `outcome-unknown` to its own
    generation, and run again for a newer one: its effect then comes at least once.

    Raises:
        ValueError: max_body is no positive number of bytes.
    """

    def __init__(self, folder: Path, max_body: int) -> None:
        self.max_body: int = positive(max_body)
        self._folder = folder

    @contextmanager
    def claim(self, token: Token, key: str, fingerprint: str) -> Generator[HostClaim]:
        """Surround a request under this key, inside the gate: so nobody newer is."""
        with closing(self.begin(token, key, fingerprint)) as claim:
            yield claim

    def begin(self, token: Token, key: str, fingerprint: str) -> HostClaim:
        """Look into the record, and make it this attempt's own if there is something to run."""
        with transaction(self._folder) as db:
            row = db.execute(
                "select fingerprint, generation, attempt, answer from record where key = ?", (key,)
            ).fetchone()
            state = self._state(token, fingerprint, row)
            if state != "run":
                return HostClaim(self._folder, key, state, answer=row[3] if row else None)
            attempt = AttemptFile(self._folder)
            try:
                db.execute(
                    "insert into record (key, fingerprint, generation, attempt) values (?, ?, ?, ?)"
                    " on conflict do update set generation = excluded.generation, attempt = excluded.attempt",
                    (key, fingerprint, token.generation, attempt.name),
                )
                db.commit()
            except BaseException:
                attempt.close()
                raise
            return HostClaim(self._folder, key, state, attempt=attempt)

    def _state(self, token: Token, fingerprint: str, row: Any) -> RequestState:
        if row is None:
            return "run"
        first_fingerprint, generation, attempt, answer = row
        if fingerprint != first_fingerprint:
            return "reused"
        if answer is not None:
            return "answered"
        if generation > token.generation:
            raise StaleToken(token, generation)
        if generation < token.generation:
            return "run"
        return "in-progress" if AttemptFile.runs(self._folder, attempt) else "unknown"


class HostClaim:
    """One request's hold of a record."""

    def __init__(
        self,
        folder: Path,
        key: str,
        state: RequestState,
        *,
        answer: str | None = None,
        attempt: AttemptFile | None = None,
    ) -> None:
        self.state: RequestState = state
        self.answer = answer
        self._folder = folder
        self._key = key
        self._attempt = attempt
        self._process = this_process()

    def keep(self, answer: str) -> None:
        """Keep the answer, if the record is still this attempt's."""
        self._write("update record set answer = :answer", answer=answer)

    def leave(self, *, undone: bool) -> None:
        """End the attempt, and forget it if it has done nothing."""
        try:
            if undone:
                self._write("delete from record")
        finally:  # else its key would be in progress for as long as this process lives
            self.close()

    def close(self) -> None:
        """Note that the attempt runs no longer."""
        if self._attempt is not None:
            self._attempt.close()

    def _write(self, statement: str, **values: str) -> None:
        if self._attempt is None or self._process != this_process():  # a forked child: not its attempt
            return
        where = " where key = :key and attempt = :attempt and answer is null"
        with transaction(self._folder) as db:
            db.execute(statement + where, {**values, "key": self._key, "attempt": self._attempt.name})
            db.commit()


class AttemptFile:
    """A file that is locked for as long as an attempt runs: a process that is killed lets go of it, too."""

    def __init__(self, folder: Path) -> None:
        self.name: str = f"attempt-{secrets.token_hex(16)}"
        self._path = folder / self.name
        # Nobody else knows the name yet.
        self._file = files.open_and_lock(str(self._path), os.O_RDWR | os.O_CREAT | os.O_EXCL, fcntl.LOCK_EX)

    @staticmethod
    def runs(folder: Path, name: str) -> bool:
        """Whether the attempt of this name still runs. The file that a killed one has left is deleted."""
        try:
            fd = os.open(folder / name, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            with suppress(FileNotFoundError):
                (folder / name).unlink()
            return False
        finally:
            os.close(fd)

    def close(self) -> None:
        """End the attempt: delete its file, and unlock it."""
        file, self._file = self._file, None
        if file is None or not files.is_locked_here(file):  # a forked child: the attempt is its parent's
            return
        with suppress(FileNotFoundError):
            self._path.unlink()
        files.unlock(file)


@contextmanager
def transaction(folder: Path) -> Generator[sqlite3.Connection]:
    """Give a connection in a transaction that excludes all others; what isn't committed is undone.

    A new connection each time: none is carried over a fork, or from one thread to another.
    """
    with closing(sqlite3.connect(folder / "answers.sqlite", timeout=WAIT, isolation_level=None)) as db:
        db.execute("pragma journal_mode = persist")  # as safe as the default, with less to be synced
        db.execute("begin immediate")
        db.execute(TABLE)
        yield db


def positive(max_body: int) -> int:
    """Return the number of bytes, if it is one."""
    if type(max_body) is not int or max_body < 1:
        raise ValueError("max_body is a number of bytes, at least 1")
    return max_body
