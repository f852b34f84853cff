"""A gate that keeps its marks in memory, with the watch that the Gate protocol asks for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from sinkfence.marks import MemoryMarks, admit
from sinkfence.tokens import Token

WATCH: ContextVar[dict[str, set[Token]] | None] = ContextVar("watch", default=None)


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
    def enter(self, token: Token) -> Iterator[None]:
        self.entered.append(token)
        reset = WATCH.set({"done": set(), "open": set()})
        try:
            yield
        finally:
            WATCH.reset(reset)
            self.entered.remove(token)

    def committed(self, token: Token) -> bool:
        watch = WATCH.get()
        return watch is not None and token in watch["done"] and not watch["open"]

    @contextlib.contextmanager
    def transaction(self, token: Token) -> Iterator[None]:
        watch = WATCH.get() or {"done": set(), "open": set()}
        watch["open"].add(token)
        yield
        with self._lock:  # check and effect in one step
            admit(token, self.marks.mark(token.job_id))
            self.effects.append((token.job_id, token.generation))
        watch["open"].discard(token)
        watch["done"].add(token)


class AsyncMemoryGate:
    """The async gate over the same marks."""

    def __init__(self, gate: MemoryGate) -> None:
        self._gate = gate

    async def announce(self, token: Token) -> None:
        self._gate.announce(token)

    @contextlib.asynccontextmanager
    async def enter(self, token: Token) -> AsyncIterator[None]:
        with self._gate.enter(token):
            yield

    def committed(self, token: Token) -> bool:
        return self._gate.committed(token)
