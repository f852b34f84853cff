"""How an event loop asks a store: a task that is cancelled leaves no lease behind that nobody knows of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sinkfence.errors import JobCompleted, LeaseHeld, LeaseLost
from sinkfence.grants import AsyncStore, Grant
from sinkfence.leases import waits
from sinkfence.leases.asking import unanswered
from sinkfence.observe import log
from sinkfence.tokens import Token

T = TypeVar("T")


class InLoop:
    """`Asking` for an event loop: what was asked goes to its end, though the task that asks is cancelled.

    The request is with the store already: the task goes, the answer comes, and nobody holds the job for a
    ttl. So a task of its own hears the answer and gives back what was granted, and the cancelled one waits
    for that before it goes. Cancelled again it goes at once: anyio cancels at each await.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        # The loop itself refers to its tasks weakly.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Asking.acquire`."""
        return await self._whole(job_id, ttl, self._store.acquire(job_id, owner, ttl), self._give_back)

    async def reacquire_above(
        self, token: Token, n: int, owner: str, ttl: float, seconds: float
    ) -> Grant | None:
        """As `Asking.reacquire_above`."""
        asking = self._store.reacquire_above(token, n, owner, ttl)
        return await self._whole(token.job_id, ttl, asking, self._give_back, seconds)

    async def release(self, token: Token, seconds: float) -> Exception | None:
        """As `Asking.release`."""
        try:
            await self._whole(token.job_id, seconds, self._store.release(token), None, seconds)
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            return error
        return None

    async def drain(self, timeout: float) -> None:
        """Wait, for `timeout` seconds at most, for what tasks of this loop have left to be ended."""
        here = asyncio.get_running_loop()
        if left := [task for task in list(self._tasks) if task.get_loop() is here]:
            await asyncio.wait(left, timeout=timeout)

    async def _whole(
        self,
        job_id: str,
        limit: float,
        asking: Coroutine[Any, Any, T],
        undo: Callable[[T], Awaitable[None]] | None,
        seconds: float | None = None,
    ) -> T:
        task = self._start(asking)
        # `wait` leaves the task alone when the time is over. A timeout around it would cancel the request,
        # and a driver that waits for an answer may not let itself be cancelled.
        try:
            await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            ending = self._start(self._end(job_id, limit, task, undo))
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending], timeout=waits.LEAVING)
            raise
        if task.done():
            return task.result()
        if undo is None:
            task.cancel()
        else:
            self._start(self._end(job_id, limit, task, undo))
        raise unanswered()

    async def _end(
        self, job_id: str, limit: float, task: asyncio.Task[T], undo: Callable[[T], Awaitable[None]] | None
    ) -> None:
        try:
            # After the ttl there is nothing left to be given back.
            async with asyncio.timeout(limit):
                answer = await asyncio.shield(task)
                if undo is not None:
                    await undo(answer)
        except (LeaseHeld, LeaseLost, JobCompleted) as error:
            log.info("job %r: cancelled, and the store answered: %s", job_id, error)
        except asyncio.CancelledError:
            log.warning("job %r: the loop ends, it may be held until its ttl is over", job_id)
            raise
        except Exception as error:  # noqa: BLE001 - it runs out by itself; the task has gone
            log.warning("job %r: cancelled, it may be held until its ttl is over: %r", job_id, error)
        finally:
            task.cancel()

    async def _give_back(self, grant: Grant | None) -> None:
        if grant is not None:
            await self._store.release(grant.token)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # heard, lest asyncio complain: who asked may have gone
