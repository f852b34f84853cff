"""How long who is leaving waits for a store that does not answer."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeVar

from sinkfence.errors import OutcomeUnknown
from sinkfence.grants import Grant, Store
from sinkfence.observe import log
from sinkfence.steps import Interruption
from sinkfence.terms import boot_time
from sinkfence.tokens import Token

T = TypeVar("T")

PATIENCE: Final = 15.0
"""Seconds for which who is leaving waits for the store: enough to find a connection dead and use another."""

PATIENCE_WHEN_LOST: Final = 3.0
"""The same where the lease is known to be over: the release is for who comes next."""

LEAST: Final = 1.0
"""Seconds that one more request has when the others have used up what there was: to be sent, at least."""

_UNTIL: contextvars.ContextVar[float | None] = contextvars.ContextVar("sinkfence.until", default=None)


@contextmanager
def together(seconds: float) -> Generator[None]:
    """Surround requests that share what patience there is, in place of having it each."""
    before = _UNTIL.get()
    _UNTIL.set(boot_time() + seconds - LEAST)
    try:
        yield
    finally:
        _UNTIL.set(before)


def patience() -> float:
    """Return for how many seconds the next request is waited for."""
    until = _UNTIL.get()
    return PATIENCE if until is None else min(PATIENCE, max(until - boot_time(), LEAST))


def unanswered() -> OutcomeUnknown:
    """Return the error of a store that has not answered for so long."""
    return OutcomeUnknown("the lease store did not answer: repeat it, or let the lease run out")


class Patient:
    """A store that is waited for no longer than `PATIENCE` by who gives a job back, or makes room in it.

    No timeout of a driver's reaches a server that is stopped and whose kernel goes on acknowledging, or an
    NFS file: so it is asked on a thread, which is left behind then, and gives back what it is granted.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def durable(self) -> bool:
        """As `Store.durable`."""
        return self._store.durable

    @property
    def jumps(self) -> bool:
        """As `Store.jumps`."""
        return self._store.jumps

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        return self._store.acquire(job_id, owner, ttl)

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        return within(lambda: self._store.reacquire_above(token, n, owner, ttl), self._give_back)

    def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        return self._store.renew(token, ttl, conn)

    def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        self._store.complete(token, result, conn)

    def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`. In the caller's own transaction it is the caller's."""
        if conn is not None:
            return self._store.release(token, conn)
        return within(lambda: self._store.release(token))

    def _give_back(self, late: Future[Grant | None]) -> None:
        try:
            if grant := late.result():
                self._store.release(grant.token)
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and it runs out by itself
            log.warning("a job that was granted too late may be held until its ttl is over: %r", error)


def within(
    ask: Callable[[], T],
    late: Callable[[Future[T]], object] = lambda _: None,
    seconds: float | None = None,
) -> T:
    """Return what the store answers. An answer that comes when nobody waits any more is given to `late`.

    `seconds`: for how long to wait, in place of `patience()`.

    Raises:
        OutcomeUnknown: none came until then.
        Interruption: a signal's handler has raised an Exception here.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    here = contextvars.copy_context()  # whoever traces the driver finds the caller's span
    thread = threading.Thread(target=here.run, args=(run,), name="sinkfence-asks", daemon=True)
    try:
        try:
            thread.start()
        except RuntimeError:
            if thread.ident is not None:
                raise  # it runs: that was a handler's
            run()  # there are too many, or this is an exit handler, where Python starts no more
        answered = wait([future], patience() if seconds is None else seconds).done
    except BaseException as interruption:  # Ctrl-C, or a handler's: what is granted now, nobody knows of
        future.add_done_callback(late)
        if isinstance(interruption, Exception):
            raise Interruption(interruption) from None
        raise
    if not answered:
        future.add_done_callback(late)
        raise unanswered()
    return future.result()
