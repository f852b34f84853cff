"""What one request of a service has guarded, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sinkfence.errors import IdempotencyMismatch, OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.tokens import Token

Outcome = Literal["no commit", "committed", "commit failed", "rolled back by commit"]
"""What a transaction has come to. "commit failed": COMMIT was sent, and answered by an error or not at all.
"rolled back by commit": an error had aborted the transaction before, and COMMIT doesn't say so."""


class GuardedTransaction(Protocol):
    """A transaction of the user's own. It holds no connection strongly, which must go back to its pool."""

    def is_open(self) -> bool:
        """Whether it is; once it was seen to have ended it is not, whatever its connection begins next."""
        ...

    def is_aborted(self) -> bool:
        """Whether COMMIT would "succeed" as a ROLLBACK, if that is known before COMMIT is sent."""
        ...

    def outcome(self) -> Outcome:
        """What an ended one has come to, for all that is known."""
        ...


_own: ContextVar[tuple[GuardedTransaction, ...]] = ContextVar("sinkfence_postgres_own", default=())
# For the `translated` that surrounds the commit of one of them.


def guarded(tokens: Collection[Token], transaction: GuardedTransaction) -> None:
    """Remember a transaction that was guarded, and that the user commits."""
    _own.set((*(other for other in open_here() if other is not transaction), transaction))
    if (watch := over(tokens)) and transaction not in watch.transactions:
        watch.transactions.append(transaction)


def open_here() -> list[GuardedTransaction]:
    """Return the transactions that were guarded in this context, and are open."""
    return [transaction for transaction in _own.get() if transaction.is_open()]


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
    transactions: list[GuardedTransaction] = field(default_factory=list[GuardedTransaction])
    """Those that the user commits. Any thread appends to this list and the next, and removes from them."""
    blocks: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Those of `transaction` that are under way."""

    @property
    def committed(self) -> bool:
        """Whether a guarded transaction was committed, and none is still open."""
        is_open = self.blocks or any(transaction.is_open() for transaction in list(self.transactions))
        return self.done and not is_open

    @property
    def applied(self) -> bool:
        """Whether a guarded transaction was committed, or may have been."""
        ended = [each.outcome() for each in list(self.transactions) if not each.is_open()]
        return self.done or self.doubted or "committed" in ended or "commit failed" in ended


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

    That there is a newer owner is the last word. After another refusal the handler may try again, and the
    last one counts.
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

    watch.blocks.append(done)
    try:
        yield done
    finally:
        watch.blocks.remove(done)


@contextmanager
def commit() -> Generator[None]:
    """Surround the user's own commit, and judge each transaction that ends inside, begun there or before.

    Raises:
        SinkfenceError: one of this context was aborted, and its COMMIT has rolled it back.
    """
    watch = _current.get()

    def known() -> set[GuardedTransaction]:
        return {*_own.get(), *(watch.transactions if watch else ())}

    past = {each for each in known() if not each.is_open()}
    aborted = {each for each in known() - past if each.is_aborted()}
    try:
        yield
    except SinkfenceError as error:
        if watch and getattr(error, "token", None) == watch.token:
            ours = [each for each in watch.transactions if each not in past]
            if len(ours) == 1 and not watch.blocks:
                watch.transactions.remove(ours[0])  # it is what was refused, as a whole
        raise
    ended = {each for each in known() - past if not each.is_open()}
    committed = {each for each in ended - aborted if each.outcome() == "committed"}
    if watch and not committed.isdisjoint(watch.transactions):
        watch.done = True
    here = ended.intersection(_own.get())
    if any(each.outcome() == "rolled back by commit" for each in here):
        raise SinkfenceError(
            "the guarded transaction was rolled back: an error that was swallowed had aborted it, "
            "and COMMIT doesn't say so"
        )
    if here & aborted and not committed:
        raise SinkfenceError(
            "the guarded transaction was rolled back, unless a savepoint has saved it: an error that was "
            "swallowed had aborted it, and COMMIT doesn't say so"
        )
