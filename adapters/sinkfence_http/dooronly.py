"""A gate that is no fence: it looks at the token once, at the door, and not at requests already inside."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sinkfence.marks import MemoryMarks
from sinkfence.sinks import Watch
from sinkfence.tokens import Token
from sinkfence_http.door import recognise
from sinkfence_http.passage import OPEN


class DoorOnly:
    """Marks in the memory of one process, compared once: sound for nothing, it narrows the window.

    A request of 7 that was let in and then stalls writes after 8 has; another worker process, and this one
    after a restart, lets 7 in again. For services that have neither a PostgreSQL nor a disk of their own.
    """

    def __init__(self) -> None:
        self._marks = MemoryMarks()

    def check(self, token: Token) -> None:
        """Tell whether this process has seen the token's owner, and nobody newer.

        Raises:
            NotArmed, StaleToken, GenerationConflict: it has not; or somebody newer.
        """
        recognise(token, self._marks.mark(token.job_id))

    def announce(self, token: Token) -> None:
        """Raise this process's mark.

        Raises:
            StaleToken, GenerationConflict: it has seen a newer owner.
        """
        self._marks.arm(token)

    def enter(self, token: Token) -> AbstractContextManager[Watch]:
        """Surround a request's handler, and do nothing."""
        return OPEN
