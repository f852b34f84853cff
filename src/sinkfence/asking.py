"""How an event loop asks a store: a task that is cancelled leaves no lease behind that nobody knows of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from sinkfence.grants import Grant, Record, Store
from sinkfence.tokens import Token

T = TypeVar("T")

log = logging.getLogger("sinkfence")


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
    """A store whose grants and releases are waited for, though the task that asks is cancelled.

    The request is with the store already: the task goes, the answer comes, and nobody holds the job for a
    ttl. So the answer is awaited, what was granted is given back, and only then is the task cancelled.
    """

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.durable = store.durable
        self.jumps = store.jumps
        self.renew = store.renew
        self.complete = store.complete

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        return await self._whole(job_id, ttl, self._store.acquire(job_id, owner, ttl), self._give_back)

    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        asking = self._store.reacquire_above(token, n, owner, ttl)
        return await self._whole(token.job_id, ttl, asking, self._give_back)

    async def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`. In the caller's own transaction it is the caller's, who rolls it back."""
        if conn is not None:
            return await self._store.release(token, conn)
        return await self._whole(token.job_id, None, self._store.release(token))

    async def _whole(
        self,
        job_id: str,
        ttl: float | None,
        asking: Coroutine[Any, Any, T],
        undo: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        task = asyncio.create_task(asking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                # After the ttl there is nothing left to be given back.
                async with asyncio.timeout(ttl):
                    answer = await asyncio.shield(task)
                    if undo is not None:
                        await undo(answer)
            except asyncio.CancelledError:
                log.warning("job %r: cancelled twice, it may be held until its ttl is over", job_id)
            except Exception as error:  # noqa: BLE001 - refused, or it runs out by itself; the task goes
                log.info("job %r: cancelled, and the store answered: %s", job_id, error)
            task.cancel()
            raise

    async def _give_back(self, grant: Grant | None) -> None:
        if grant is not None:
            await self._store.release(grant.token)
