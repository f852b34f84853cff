"""How the store is asked for what nobody may lose sight of: a grant, and the release of one."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from sinkfence.errors import OutcomeUnknown
from sinkfence.flows import Interruption
from sinkfence.grants import Grant, Store
from sinkfence.leases.once import Once
from sinkfence.leases.threads import start
from sinkfence.observe import log
from sinkfence.tokens import Token

T = TypeVar("T")


class Asking(Protocol):
    """A store's calls that grant or release, waited for `seconds` at most; for an event loop to be awaited.

    Raises:
        OutcomeUnknown: no answer came in that time. What is granted later is given back.
    """

    def acquire(self, job_id: str, owner: str, ttl: float) -> Any:
        """As `Store.acquire`, for as long as it takes."""
        ...

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float, seconds: float) -> Any:
        """As `Store.reacquire_above`."""
        ...

    def release(self, token: Token, seconds: float) -> Any:
        """As `Store.release`, and return the error: what is raised is an interruption."""
        ...


class InThreads:
    """`Asking` for threads.

    No timeout of a driver's ends a call to a server that is stopped while its kernel goes on acknowledging,
    nor one that waits for a file on NFS. So what is bounded is asked on a thread of its own, which is left
    behind where no answer comes.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Asking.acquire`."""
        return self._store.acquire(job_id, owner, ttl)

    def reacquire_above(self, token: Token, n: int, owner: str, ttl: float, seconds: float) -> Grant | None:
        """As `Asking.reacquire_above`."""
        ask = partial(self._store.reacquire_above, token, n, owner, ttl)
        return within(seconds, ask, self._give_back)

    def release(self, token: Token, seconds: float) -> Exception | None:
        """As `Asking.release`."""
        try:
            return within(seconds, partial(_error_of, self._store.release, token))
        except OutcomeUnknown as unknown:
            return unknown

    def _give_back(self, late: Future[Grant | None]) -> None:
        try:
            if grant := late.result():
                self._store.release(grant.token)
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and it runs out by itself
            log.warning("a job that was granted too late may be held until its ttl is over: %r", error)


def _error_of(release: Callable[[Token], None], token: Token) -> Exception | None:
    try:
        release(token)
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        return error
    return None


def unanswered() -> OutcomeUnknown:
    """Return the error of a store that has not answered for so long."""
    return OutcomeUnknown("the lease store did not answer: repeat it, or let the lease run out")


def within(seconds: float, ask: Callable[[], T], late: Callable[[Future[T]], object] = lambda _: None) -> T:
    """Return what the store answers. An answer that comes when nobody waits any more is given to `late`.

    Raises:
        OutcomeUnknown: none came until then.
        Interruption: a signal's handler has raised an Exception here.
    """
    future: Future[T] = Future()
    began: Once[bool] = Once()

    def run() -> None:
        if not began.offer(True):  # what an interrupted start() raises doesn't tell whether the thread runs
            return
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    here = contextvars.copy_context()  # whoever traces the driver finds the caller's span
    thread = threading.Thread(target=here.run, args=(run,), name="sinkfence-asks", daemon=True)
    try:
        start(thread, run)
        answered = wait([future], seconds).done
    except BaseException as interruption:  # Ctrl-C, or a handler's: nobody waits for the answer
        future.add_done_callback(late)
        if not began.value:  # the start was interrupted: what was to be asked is asked all the same
            with suppress(RuntimeError):
                start(threading.Thread(target=run, name="sinkfence-asks", daemon=True))
        if isinstance(interruption, Exception):
            raise Interruption(interruption) from None
        raise
    if not answered:
        future.add_done_callback(late)
        raise unanswered()
    return future.result()
