"""A few threads for what a gate must do beside its loop, whatever the handlers do with the loop's own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from sinkfence.process import Process, this_process

NUMBER: Final = 4

T = TypeVar("T")


class Threads:
    """A pool, begun at first use, and anew in a forked process, which has none of its parent's threads."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._pool: ThreadPoolExecutor | None = None

    def start(self, call: Callable[..., T], *arguments: Any, **named: Any) -> Future[T]:
        """Call it in a thread."""
        process = this_process()
        if self._pool is None or self._process != process:
            self._process, self._pool = process, ThreadPoolExecutor(NUMBER, "sinkfence-http")
        return self._pool.submit(functools.partial(call, *arguments, **named))

    async def run(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call it in a thread, and wait for that; a call that has begun is not ended by a cancellation."""
        return await asyncio.wrap_future(self.start(call, *arguments, **named))
