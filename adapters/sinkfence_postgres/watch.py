"""What one request of a service has guarded, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sinkfence.errors import OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.tokens import Token


@dataclass(slots=True, eq=False)
class Guard:
    """One guarded transaction."""

    tx: object
    """What was guarded: a connection or a session."""
    look: Callable[[], bool]
    """Whether it is open, asked of its connection, which may begin another afterwards."""
    sent: Callable[[], bool] = lambda: True
    """Whether a COMMIT that can succeed was sent for it. psycopg doesn't tell: True."""
    failed: Callable[[], bool] = lambda: False
    """Whether the last statement on its connection failed, or the transaction has. asyncpg doesn't tell."""
    aborted: Callable[[], bool | None] = lambda: None
    """Whether its COMMIT would "succeed" as a ROLLBACK. asyncpg doesn't tell: None."""
    task: object = None
    """The task that has guarded it, and alone may use it now."""
    closed: bool = False

    def is_open(self) -> bool:
        """Whether it is open; once it was seen closed it stays so."""
        self.closed = self.closed or not self.look()
        return not self.closed


_guards: ContextVar[tuple[Guard, ...]] = ContextVar("sinkfence_postgres_guards", default=())
# Those of the user's own transactions, for the `translated` that surrounds the commit of one of them.


def guarded(tokens: Collection[Token], guard: Guard) -> None:
    """Remember a guard in a transaction that the user commits."""
    _guards.set((*(other for other in open_here() if other.tx is not guard.tx), guard))
    if watch := over(tokens):
        watch.guards.append(guard)


def open_here() -> list[Guard]:
    """Return the guards that were made in this context, and whose transactions are open."""
    return [guard for guard in _guards.get() if guard.is_open()]


@contextmanager
def whole(aborted: Collection[Guard]) -> Generator[None]:
    """Surround the user's own commit: of what is aborted, it must not be believed."""
    yield
    if not all(guard.is_open() for guard in aborted):
        raise SinkfenceError(
            "nothing was applied: the guarded transaction was aborted by an error that was swallowed, "
            "and COMMIT has rolled it back without saying so"
        )


@dataclass(slots=True, eq=False)
class Watch:
    """Mutable on purpose: a handler in a thread or task has a copied context, and the same watch in it."""

    token: Token
    done: bool = False
    """Whether something was committed for certain."""
    doubted: bool = False
    """Whether something may have been, and its answer was lost."""
    refused: SinkfenceError | None = None
    guards: list[Guard] = field(default_factory=list[Guard])
    """Appended to and removed from by any thread."""

    @property
    def committed(self) -> bool:
        """Whether a guarded transaction was committed, and none is still open."""
        return self.done and not any(guard.is_open() for guard in list(self.guards))

    @property
    def applied(self) -> bool:
        """Whether a guarded transaction was committed, or may have been."""
        ended = (guard for guard in list(self.guards) if not guard.is_open())
        return self.done or self.doubted or any(guard.sent() for guard in ended)


_current: ContextVar[Watch | None] = ContextVar("sinkfence_postgres_watch", default=None)
# One for the sync and the async sink: an asynchronous door may stand before synchronous handlers.


@contextmanager
def entered(token: Token) -> Generator[Watch]:
    """Watch over what is guarded with this token inside."""
    outer, mine = _current.get(), Watch(token)
    _current.set(mine)
    try:
        yield mine
    finally:
        # Not reset(): a WSGI response may be closed in another context than it was made in. And only what is
        # ours: a server that drops a response without close() leaves this to the garbage collector, which may
        # run it in the middle of another thread's request, whose watch must stay.
        if _current.get() is mine:
            _current.set(outer)


def over(tokens: Collection[Token]) -> Watch | None:
    """Return the watch over the present request, if its token is one of these."""
    watch = _current.get()
    return watch if watch is not None and watch.token in tokens else None


def hear(error: SinkfenceError) -> None:
    """Remember how the present request was refused: a framework may keep that from the door.

    A newer owner is the last word. Anything else the handler may overcome, and is refused anew.
    """
    watch = _current.get()
    if watch is None:
        return
    if isinstance(error, OutcomeUnknown):
        watch.doubted = True
    elif getattr(error, "token", None) == watch.token and not isinstance(watch.refused, StaleToken):
        watch.refused = error


@contextmanager
def block(tokens: Collection[Token]) -> Generator[Callable[[], None]]:
    """Count a block that guards these tokens; what it yields is called when the block was committed."""
    watch = over(tokens)
    if watch is None:
        yield lambda: None
        return

    def done() -> None:
        watch.done = True

    guard = Guard(None, lambda: True)
    watch.guards.append(guard)
    try:
        yield done
    finally:
        watch.guards.remove(guard)


@contextmanager
def commit() -> Generator[None]:
    """Surround the user's own commit: what was guarded and open before, and isn't after, is committed."""
    watch = _current.get()
    if watch is None:
        yield
        return
    before = [guard for guard in list(watch.guards) if guard.is_open() and not guard.failed()]
    try:
        yield
    except SinkfenceError as error:
        if len(before) == 1 and getattr(error, "token", None) == watch.token:
            watch.guards.remove(before[0])  # it is what was refused, as a whole
        raise
    if any(not guard.is_open() and guard.sent() and not guard.failed() for guard in before):
        watch.done = True
