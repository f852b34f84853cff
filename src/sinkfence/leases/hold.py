"""What `hold` returns: something to enter by `with`, once. It decorates nothing, and is no lease itself."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from sinkfence.leases.once import Once

L = TypeVar("L")


class _Hold:
    """Refuses what a context manager made of a generator would let through."""

    def __init__(self) -> None:
        self._entered: Once[bool] = Once()

    def _enter_once(self) -> None:
        if not self._entered.offer(True):
            raise RuntimeError("a hold() is entered once: call leases.hold(...) anew for each turn")

    def __call__(self, func: object) -> NoReturn:
        # A coroutine function or a generator returns before its body runs: the job would be given back first.
        raise TypeError(
            "hold() is no decorator: enter it inside of the function, `with leases.hold(job_id) as lease:`"
        )


class Hold(_Hold, AbstractContextManager[L], Generic[L]):
    """A job that is held inside `with`. Nothing is acquired before that.

    Raises:
        RuntimeError: it is entered again.
        TypeError: it is used as a decorator.
    """

    def __init__(self, block: AbstractContextManager[L]) -> None:
        super().__init__()
        self._block = block

    def __enter__(self) -> L:
        self._enter_once()
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)


class AsyncHold(_Hold, AbstractAsyncContextManager[L], Generic[L]):
    """As `Hold`, for `async with`."""

    def __init__(self, block: AbstractAsyncContextManager[L]) -> None:
        super().__init__()
        self._block = block

    async def __aenter__(self) -> L:
        self._enter_once()
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, trace)
