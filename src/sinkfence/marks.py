"""The rule that every destination enforces, and the smallest destination that does."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sinkfence.errors import GenerationConflict, StaleToken
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest generation that a sink has seen for a job, and whose it was."""

    generation: int
    owner: str


def admit(token: Token, mark: Mark | None) -> Mark:
    """Return the mark that holds once this token was admitted, or refuse the token.

    Lower is refused. Equal is admitted for the same owner: an owner writes more than once. Equal under
    another owner is refused: the store has issued a number twice. Higher raises the mark.

    The answer is worth something only where reading the mark, this decision and the effect are one
    atomic step of the destination.

    Raises:
        StaleToken: the token is lower than the mark.
        GenerationConflict: the mark's number under another owner.
    """
    if mark is not None and token.generation < mark.generation:
        raise StaleToken(token, mark.generation)
    if mark is not None and token.generation == mark.generation and token.owner != mark.owner:
        raise GenerationConflict(token, mark.generation)
    return Mark(token.generation, token.owner)


class MemoryMarks:
    """A sink that lives as long as its process: for tests, and to show the rule.

    Its marks are gone after a restart, and with them the fence: `durable` is False.
    """

    durable: bool = False

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}
        self._lock = threading.Lock()

    def arm(self, bearer: Bearer) -> None:
        """Raise the job's mark to the bearer's generation.

        Raises:
            StaleToken, GenerationConflict: as `admit`; the bearer is told.
        """
        token = bearer.token
        try:
            with self._lock:
                self._marks[token.job_id] = admit(token, self._marks.get(token.job_id))
        except StaleToken as stale:
            bearer.lose(stale)
            raise

    def mark(self, job_id: str) -> Mark | None:
        """Return the job's mark, to look at and never to write with."""
        with self._lock:
            return self._marks.get(job_id)
