"""A gate that keeps its marks in memory, with the watch that the Gate protocol asks for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from sinkfence.errors import StaleToken
from sinkfence.marks import MemoryMarks, admit
from sinkfence.tokens import Token


class Watch:
    """What one request has done."""

    def __init__(self) -> None:
        self.done = False
        self.open = 0
        self.refused: StaleToken | None = None

    @property
    def committed(self) -> bool:
        return self.done and not self.open

    @property
    def applied(self) -> bool:
        return self.done


WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


class MemoryGate:
    """The sync gate; `effects` is what took effect, in its order."""

    def __init__(self) -> None:
        self.marks = MemoryMarks()
        self.effects: list[tuple[str, int]] = []
        self.entered: list[Token] = []
        self.broken: Exception | None = None
        self._lock = threading.Lock()

    def announce(self, token: Token) -> None:
        if self.broken is not None:
            raise self.broken
        self.marks.arm(token)

    @contextlib.contextmanager
    def enter(self, token: Token) -> Iterator[Watch]:
        self.entered.append(token)
        watch = Watch()
        reset = WATCH.set(watch)
        try:
            yield watch
        finally:
            WATCH.reset(reset)
            self.entered.remove(token)

    @contextlib.contextmanager
    def transaction(self, token: Token) -> Iterator[None]:
        watch = WATCH.get() or Watch()
        watch.open += 1
        try:
            yield
            with self._lock:  # check and effect in one step
                admit(token, self.marks.mark(token.job_id))
                self.effects.append((token.job_id, token.generation))
            watch.done = True
        except StaleToken as stale:
            watch.refused = stale
            raise
        finally:
            watch.open -= 1


class AsyncMemoryGate:
    """The async gate over the same marks."""

    def __init__(self, gate: MemoryGate) -> None:
        self._gate = gate

    async def announce(self, token: Token) -> None:
        self._gate.announce(token)

    @contextlib.asynccontextmanager
    async def enter(self, token: Token) -> AsyncIterator[Watch]:
        with self._gate.enter(token) as watch:
            yield watch
