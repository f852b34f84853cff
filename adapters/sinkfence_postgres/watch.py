"""What one request of a service has guarded, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sinkfence.errors import IdempotencyMismatch, OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.tokens import Token


@dataclass(slots=True, eq=False)
class Guard:
    """One guarded transaction. Refers to nothing strongly: it must not keep a connection from its pool."""

    look: Callable[[], bool]
    """Whether it is open, asked of its connection, which may begin another afterwards."""
    aborted: Callable[[], bool] = lambda: False
    """psycopg: whether its COMMIT would "succeed" as a ROLLBACK."""
    failed: Callable[[], bool] = lambda: False
    """psycopg: whether the last statement on its connection has."""
    sent: bool = False
    """Whether a COMMIT that can succeed was sent for it. psycopg doesn't tell: True."""
    refused: bool = False
    """Whether the answer to it was an error."""
    undone: bool = False
    """Whether COMMIT was sent for an aborted transaction, and has rolled it back."""
    suspect: bool = False
    """Whether a statement has failed before."""
    closed: bool = False

    def is_open(self) -> bool:
        """Whether it is open; once it was seen closed it stays so."""
        self.closed = self.closed or not self.look()
        return not self.closed

    def is_committed(self) -> bool:
        """Whether its COMMIT has succeeded, for all that is known."""
        return not self.is_open() and self.sent and not self.refused and not self.failed()


_guards: ContextVar[tuple[Guard, ...]] = ContextVar("sinkfence_postgres_guards", default=())
# Those of the user's own transactions, for the `translated` that surrounds the commit of one of them.


def guarded(tokens: Collection[Token], guard: Guard) -> None:
    """Remember a guard in a transaction that the user commits."""
    _guards.set((*(other for other in open_here() if other is not guard), guard))
    if (watch := over(tokens)) and guard not in watch.guards:
        watch.guards.append(guard)


def open_here() -> list[Guard]:
    """Return the guards that were made in this context, and whose transactions are open."""
    return [guard for guard in _guards.get() if guard.is_open()]


@dataclass(slots=True, eq=False)
class Watch:
    """Mutable on purpose: a handler in a thread or task has a copied context, and the same watch in it."""

    token: Token
    done: bool = False
    """Whether something was committed for certain."""
    doubted: bool = False
    """Whether something may have been, and its answer was lost."""
    refused: SinkfenceError | None = None
    asked: tuple[str, str] | None = None
    """Under which key the request came, and the fingerprint of what it asks for."""
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
        return self.done or self.doubted or any(guard.sent for guard in ended)


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


def claimed(token: Token, key: str, fingerprint: str) -> None:
    """Remember that the present request has this key."""
    if watch := over([token]):
        watch.asked = (key, fingerprint)


def asked(token: Token, step: str) -> str | None:
    """Return the fingerprint of the present request, if the step is one of that request under its key."""
    watch = over([token])
    if watch is None or watch.asked is None:
        return None
    key, fingerprint = watch.asked
    return fingerprint if step.endswith(f" {key}") else None


def doubt(tokens: Collection[Token]) -> None:
    """Remember that a COMMIT of the present request, if these are its tokens, was sent and not answered."""
    if watch := over(tokens):
        watch.doubted = True


def hear(error: SinkfenceError) -> None:
    """Remember how the present request was refused: a framework may keep that from the door.

    A newer owner is the last word. Anything else the handler may overcome, and is refused anew.
    """
    watch = _current.get()
    if watch is None:
        return
    if isinstance(error, OutcomeUnknown):
        watch.doubted = True
    elif isinstance(watch.refused, StaleToken):
        return
    elif isinstance(error, IdempotencyMismatch) or getattr(error, "token", None) == watch.token:
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

    guard = Guard(lambda: True)
    watch.guards.append(guard)
    try:
        yield done
    finally:
        watch.guards.remove(guard)


@contextmanager
def commit() -> Generator[None]:
    """Surround the user's own commit, and judge each transaction that ends inside, begun there or before.

    Raises:
        SinkfenceError: one of this context was aborted, and its COMMIT has rolled it back.
    """
    watch = _current.get()

    def known() -> set[Guard]:
        return {*_guards.get(), *(watch.guards if watch else ())}

    past = {guard for guard in known() if not guard.is_open()}
    aborted = {guard for guard in known() - past if guard.aborted()}
    try:
        yield
    except SinkfenceError as error:
        if watch and getattr(error, "token", None) == watch.token:
            ours = [guard for guard in watch.guards if guard not in past]
            if len(ours) == 1:
                watch.guards.remove(ours[0])  # it is what was refused, as a whole
        raise
    ended = {guard for guard in known() - past if not guard.is_open()}
    committed = {guard for guard in ended - aborted if guard.is_committed()}
    if watch and not committed.isdisjoint(watch.guards):
        watch.done = True
    here = ended.intersection(_guards.get())
    if any(guard.undone for guard in here):
        raise SinkfenceError(
            "the guarded transaction was rolled back: an error that was swallowed had aborted it, "
            "and COMMIT doesn't say so"
        )
    if here & aborted and not committed:
        raise SinkfenceError(
            "the guarded transaction was rolled back, unless a savepoint has saved it: an error that was "
            "swallowed had aborted it, and COMMIT doesn't say so"
        )
