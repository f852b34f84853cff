"""What one request of a service has guarded, and whether all of it was committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sinkfence.tokens import Token


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """One guarded transaction."""

    is_open: Callable[[], bool]
    is_aborted: Callable[[], bool]
    """Whether its COMMIT would "succeed" as a ROLLBACK. asyncpg doesn't tell: False."""


@dataclass(slots=True, eq=False)
class Watch:
    """Mutable on purpose: a handler in a thread or task has a copied context, and the same watch in it."""

    token: Token
    committed: bool = False
    guards: list[Guard] = field(default_factory=list[Guard])
    """Appended to and removed from by any thread."""


_current: ContextVar[Watch | None] = ContextVar("sinkfence_postgres_watch", default=None)
# One for the sync and the async sink: an asynchronous door may stand before synchronous handlers.


@contextmanager
def entered(token: Token) -> Generator[None]:
    """Watch over what is guarded with this token inside."""
    outer, mine = _current.get(), Watch(token)
    _current.set(mine)
    try:
        yield
    finally:
        # Not reset(): a WSGI response may be closed in another context than it was made in. And only what is
        # ours: a server that drops a response without close() leaves this to the garbage collector, which may
        # run it in the middle of another thread's request, whose watch must stay.
        if _current.get() is mine:
            _current.set(outer)


def committed(token: Token) -> bool:
    """Whether a guarded transaction of this token was committed here, and none is still open."""
    watch = _current.get()
    if watch is None or watch.token != token:
        return False
    return watch.committed and not any(guard.is_open() for guard in list(watch.guards))


@contextmanager
def block(tokens: Collection[Token]) -> Generator[Callable[[], None]]:
    """Count a block that guards these tokens; what it yields is called when the block was committed."""
    watch = _current.get()
    if watch is None or watch.token not in tokens:
        yield lambda: None
        return

    def done() -> None:
        watch.committed = True

    guard = Guard(lambda: True, lambda: False)
    watch.guards.append(guard)
    try:
        yield done
    finally:
        watch.guards.remove(guard)


def guarded(tokens: Collection[Token], guard: Guard) -> None:
    """Remember a guard in a transaction that the user commits."""
    watch = _current.get()
    if watch is not None and watch.token in tokens:
        watch.guards.append(guard)


@contextmanager
def commit() -> Generator[None]:
    """Surround the user's own commit: what was guarded and open before, and isn't after, is committed."""
    watch = _current.get()
    guards = list(watch.guards) if watch else []
    before = [guard for guard in guards if guard.is_open() and not guard.is_aborted()]
    yield
    if watch and any(not guard.is_open() for guard in before):
        watch.committed = True
