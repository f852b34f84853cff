"""How an event loop asks a store: a task that is cancelled leaves no lease behind that nobody knows of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, TypeVar

from sinkfence.errors import JobCompleted, LeaseHeld, LeaseLost
from sinkfence.grants import Grant, Record, Store
from sinkfence.leases.patience import PATIENCE, patience, unanswered
from sinkfence.observe import log
from sinkfence.tokens import Token

T = TypeVar("T")


class AsyncStore(Protocol):
    """A `Store` for an event loop."""

    @property
    def durable(self) -> bool:
        """As `Store.durable`."""
        ...

    @property
    def jumps(self) -> bool:
        """As `Store.jumps`."""
        ...

    @property
    def sync(self) -> Store:
        """The same records over connections of its own: for the heartbeat, whose thread no loop holds up."""
        ...

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        ...

    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        ...

    async def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        ...

    async def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        ...

    async def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`."""
        ...

    async def get(self, job_id: str) -> Record | None:
        """As `Store.get`."""
        ...

    async def list(self, prefix: str) -> Sequence[Record]:
        """As `Store.list`."""
        ...

    async def reopen(self, job_id: str) -> Record:
        """As `Store.reopen`."""
        ...

    async def raise_above(self, job_id: str, n: int) -> Record:
        """As `Store.raise_above`."""
        ...

    async def close(self) -> None:
        """As `Store.close`, in this event loop; and the connections of `sync`."""
        ...


class Unhurried:
    """A store whose grants and releases go to their end, though the task that asks is cancelled.

    The request is with the store already: the task goes, the answer comes, and nobody holds the job for a
    ttl. So a task of its own hears the answer and gives back what was granted, and the cancelled one waits
    for that before it goes. Cancelled again it goes at once: anyio cancels at each await.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        # The loop itself refers to its tasks weakly.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.durable: bool = store.durable
        self.jumps: bool = store.jumps

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        return await self._whole(job_id, ttl, self._store.acquire(job_id, owner, ttl), self._give_back)

    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`, for `PATIENCE` seconds."""
        asking = self._store.reacquire_above(token, n, owner, ttl)
        return await self._whole(token.job_id, ttl, asking, self._give_back, patience())

    async def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        return await self._store.renew(token, ttl, conn)

    async def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        await self._store.complete(token, result, conn)

    async def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`, for `PATIENCE` seconds. In the caller's own transaction it is the caller's."""
        if conn is not None:
            return await self._store.release(token, conn)
        return await self._whole(token.job_id, PATIENCE, self._release(token))

    async def settle(self, timeout: float) -> None:
        """Wait, for `timeout` seconds at most, for what tasks of this loop have left to be ended."""
        here = asyncio.get_running_loop()
        if left := [task for task in list(self._tasks) if task.get_loop() is here]:
            await asyncio.wait(left, timeout=timeout)

    async def _whole(
        self,
        job_id: str,
        limit: float,
        asking: Coroutine[Any, Any, T],
        undo: Callable[[T], Awaitable[None]] | None = None,
        seconds: float | None = None,
    ) -> T:
        task = self._start(asking)
        limited = asyncio.timeout(seconds)
        try:
            async with limited:
                return await asyncio.shield(task)
        except TimeoutError:
            if not limited.expired():
                raise  # the driver's own
            self._start(self._end(job_id, limit, task, undo))
            raise unanswered() from None
        except asyncio.CancelledError:
            ending = self._start(self._end(job_id, limit, task, undo))
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ending], timeout=PATIENCE)
            raise

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

    async def _release(self, token: Token) -> None:
        task = self._start(self._store.release(token))
        # Not by a cancellation, which a driver that gets no answer may not follow at once.
        await asyncio.wait([task], timeout=patience())
        if not task.done():
            task.cancel()
            raise unanswered()
        task.result()

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
            task.exception()  # who would have heard it may have gone
