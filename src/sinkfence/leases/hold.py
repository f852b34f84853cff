"""What `hold` returns: something to enter by `with`, once, or to decorate with, and no lease itself."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    ContextDecorator,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

L = TypeVar("L")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A", bound=Callable[..., Awaitable[Any]])

OF_A_LEASE: Final = {
    *("token", "job_id", "generation", "lease_until", "lost", "remaining", "key", "lose"),
    *("renew", "complete", "release"),
}
_EARLY: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class _NoLease:
    """Says what to do to whoever takes it for the lease: nothing is acquired before it is entered."""

    _words = "with"

    if not TYPE_CHECKING:  # a type checker would take it for a bearer: whatever is asked for is there

        def __getattr__(self, name: str) -> NoReturn:
            if name in OF_A_LEASE:
                raise TypeError(
                    f"hold() acquires nothing before it is entered: "
                    f"`{self._words} leases.hold(...) as lease:`, and then lease.{name}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Hold(_NoLease, ContextDecorator, AbstractContextManager[L], Generic[L]):
    """A job that is held inside `with`, or while a decorated function runs."""

    _block: AbstractContextManager[L]

    def __init__(self, begin: Callable[[], AbstractContextManager[L]]) -> None:
        self._begin = begin
        self._blocks = [begin()]

    def __call__(self, func: F) -> F:
        """Decorate a function: the job is acquired at each call.

        Raises:
            TypeError: it returns before its body has run, and so would give the job back before.
        """
        if any(kind(each) for kind in _EARLY for each in (func, type(func).__call__)):
            raise TypeError(
                f"{_name(func)} returns before its body runs, and would hold nothing: "
                "enter hold() inside of it"
            )
        return super().__call__(func)

    def __enter__(self) -> L:
        self._block = _only(self._blocks)
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def _recreate_cm(self) -> Hold[L]:
        return Hold(self._begin)


class AsyncHold(_NoLease, AsyncContextDecorator, AbstractAsyncContextManager[L], Generic[L]):
    """A job that is held inside `async with`, or while a decorated coroutine function runs."""

    _words = "async with"

    _block: AbstractAsyncContextManager[L]

    def __init__(self, begin: Callable[[], AbstractAsyncContextManager[L]]) -> None:
        self._begin = begin
        self._blocks = [begin()]

    def __call__(self, func: A) -> A:
        """Decorate a coroutine function: the job is acquired at each call.

        Raises:
            TypeError: it is none.
        """
        awaited: bool = inspect.iscoroutinefunction(func)
        if not awaited:
            raise TypeError(f"{_name(func)} is no coroutine function: enter hold() inside of it")
        return super().__call__(func)

    async def __aenter__(self) -> L:
        self._block = _only(self._blocks)
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, trace)

    def _recreate_cm(self) -> AsyncHold[L]:
        return AsyncHold(self._begin)


def _only(blocks: list[T]) -> T:
    """Take the one that there is; of two threads that enter at once, one gets it."""
    try:
        return blocks.pop()
    except IndexError:
        raise RuntimeError("a hold() is entered once: call leases.hold(...) anew for each turn") from None


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", None) or repr(func)
