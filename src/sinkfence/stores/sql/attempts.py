"""What becomes of a statement that was sent: answered, sent again, given up, or of unknown outcome."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sinkfence.errors import Conflict, LeaseLost, NotEnforced, OutcomeUnknown
from sinkfence.stores.sql import schema
from sinkfence.stores.sql.records import NotSeen
from sinkfence.stores.sql.sending import UNPREPARED, sqlstate

T = TypeVar("T")

ATTEMPTS: Final = 6
RETRYABLE: Final = {"40001", "40P01"}
"""Serialization failure and deadlock: the server undid the transaction so that it can be run again."""
_SHUTDOWN: Final = {"57P01", "57P02", "57P03"}
"""The server has ended the session. Its COMMIT may be done here, and only have waited for a standby."""


class Attempts:
    """The sendings of one call that may be repeated: after a deadlock, and after an answer that was lost.

    `drivers`: what the driver raises. A TimeoutError of a signal's handler is none of psycopg's, and passes;
    asyncpg has OSErrors, which SQLAlchemy leaves as they are.
    """

    def __init__(self, *drivers: type[Exception]) -> None:
        self._drivers: tuple[type[Exception], ...] = (DBAPIError, *drivers)
        self.connected: bool = False
        """Whether there is a connection for this sending: else nothing was sent."""
        self._sent: Exception | None = None
        self._last: Exception | None = None
        self._again = True

    def __iter__(self) -> Generator[float]:
        """Give the seconds to wait before each sending."""
        for attempt in range(ATTEMPTS):
            if not self._again:
                return
            # Jitter, as whoever deadlocked would meet again.
            yield random.uniform(0.5, 1.0) * min(0.02 * 2**attempt, 0.5) if attempt else 0.0  # noqa: S311

    @contextmanager
    def judged(self) -> Generator[None]:
        """Surround one sending. What comes out of it is final; else it is to be sent again, or given up.

        Raises:
            SchemaMismatch: there is no such table, or this role may not use it.
            Conflict: the change of what was seen met something else, and no sending before may have made it.
        """
        self.connected = False
        try:
            yield
        except LeaseLost as lost:
            lost.earlier_attempt_unknown = self._sent is not None
            raise
        except Conflict as conflict:
            if self._sent is None:
                raise
            # The first sending may have made the change, and somebody else the next one.
            self._last, self._again = conflict, False
        except NotSeen as unseen:
            # The table was rewritten after this sending's snapshot was taken. The next one's sees the row.
            self._last = unseen
        except self._drivers as error:
            self._last = error
            if not self.connected:
                if self._sent is None:
                    raise
                return
            unanswered = _is_unanswered(error)
            self._sent = error if unanswered else self._sent
            if _is_absent(error):
                raise schema.missing() from error
            if sqlstate(error) == "42501":  # insufficient_privilege
                raise schema.forbidden(str(getattr(error, "orig", error)).partition("\n")[0]) from error
            self._again = unanswered or sqlstate(error) in RETRYABLE | UNPREPARED

    def outcome(self) -> Exception:
        """Return what became of it: OutcomeUnknown, or an error of which is known that it took no effect."""
        if self._sent is None:
            assert self._last is not None
            return _kept_out() if isinstance(self._last, NotSeen) else self._last
        unknown = OutcomeUnknown(
            "the lease store gave no answer to a statement, nor to its repetition: it may have taken effect. "
            "Repeat the call, or let the lease run out"
        )
        unknown.__cause__ = self._sent
        return unknown


def run(
    engine: sa.Engine, work: Callable[[sa.Connection], T], *, pause: Callable[[float], object] = time.sleep
) -> T:
    """Do work that may be repeated.

    Raises:
        OutcomeUnknown: sent, and neither this nor a repetition was answered.
        SchemaMismatch: there is no such table.
        sqlalchemy.exc.DBAPIError: anything else, of which is known that it took no effect.
    """
    attempts = Attempts()
    for wait in attempts:
        if wait:
            pause(wait)
        with attempts.judged(), engine.connect() as connection:
            attempts.connected = True
            return work(connection)
    raise attempts.outcome()


def is_blocked(error: DBAPIError) -> bool:
    """Whether somebody's transaction kept the row, or SQLite's file, locked for too long."""
    return sqlstate(error) == "55P03" or getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _kept_out() -> NotEnforced:
    return NotEnforced(
        "the record is this lease's and open, and no statement changes it: a policy of row level security "
        "or a trigger keeps this role from it. Grant it UPDATE of every row; till then the lease runs out"
    )


def _is_unanswered(error: Exception) -> bool:
    code = sqlstate(error)
    cut = not isinstance(error, DBAPIError) or error.connection_invalidated
    return cut or (code is not None and (code[:2] == "08" or code in _SHUTDOWN))


def _is_absent(error: Exception) -> bool:
    return sqlstate(error) in {"42P01", "42703"} or "no such table" in str(getattr(error, "orig", ""))
