"""Leases for an event loop (asyncio's), under the same names: what asks the store or a sink is awaited.

What they decide is what `sinkfence.Leases` decides, by the same flows. The heartbeat is the same too: a
thread, whose renewals go over a connection of its own, since a task would wait with whatever blocks the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, NoReturn

from sinkfence.flows import drive_async
from sinkfence.grants import AsyncStore, Record
from sinkfence.leases.arming import check_sinks, is_async, is_future
from sinkfence.leases.heartbeat import OnLost
from sinkfence.leases.hold import AsyncHold
from sinkfence.leases.lease import BaseLease, completing, releasing, renewing
from sinkfence.leases.loops import InLoop
from sinkfence.leases.means import Means
from sinkfence.leases.per_process import PerProcess, check_prefix, check_store, check_timeout, check_wait
from sinkfence.observe import log
from sinkfence.sinks import AsyncSink, Sink
from sinkfence.terms import Clock, boot_time
from sinkfence.tokens import Token, check_job_id

__all__: Final = ["Lease", "Leases"]


class Lease(BaseLease):
    """As `sinkfence.Lease`. `lost` is an event of threads: look at it, or be told by `on_lost`."""

    async def renew(self, *, conn: object = None) -> None:
        """As `sinkfence.Lease.renew`."""
        await drive_async(renewing(self._means, self._tenure, conn))

    async def complete(self, result: Any = None, *, conn: object = None) -> None:
        """As `sinkfence.Lease.complete`. Cancelled, it may have been completed: repeat it."""
        await drive_async(completing(self._means, self._tenure, result, conn))

    async def release(self, *, conn: object = None) -> None:
        """As `sinkfence.Lease.release`."""
        await drive_async(releasing(self._means, self._tenure, conn))


class Leases:
    """As `sinkfence.Leases`, of a store for event loops: `sinkfence.stores.sql.aio.SqlStore`.

    `on_lost` runs on a thread of the heartbeat: `loop.call_soon_threadsafe` takes the news into the loop.
    A task that is cancelled while it acquires waits for the store's answer, and gives back what was granted.
    Cancelled again, it goes at once, and that is done behind it; the end of the loop may leave a lease.
    """

    def __init__(
        self,
        store: AsyncStore,
        *,
        ttl: timedelta | float = 30.0,
        heartbeat: timedelta | float | None = None,
        owner: str | None = None,
        on_lost: OnLost[Lease] | None = None,
        _clock: Clock = boot_time,
        _pause: Callable[[float], Coroutine[Any, Any, object]] = asyncio.sleep,
    ) -> None:
        check_store(store, loop=True)
        asking = InLoop(store)
        means: Means[Lease] = Means(
            store=store,
            asking=asking,
            beats=store.sync,
            lease=Lease,
            arm=_arm,
            pause=_pause,
            clock=_clock,
        )
        self._store = store
        self._asking = asking
        self._clock = _clock
        self._holders = PerProcess(means, ttl, heartbeat, owner, on_lost)

    def hold(
        self,
        job_id: str,
        *,
        ttl: timedelta | float | None = None,
        wait: timedelta | float = 0.0,
        arm: Collection[Sink | AsyncSink] = (),
    ) -> AsyncHold[Lease]:
        """As `sinkfence.Leases.hold`. Sinks that are not for an event loop are armed in a thread."""
        return AsyncHold(self._hold(job_id, ttl, wait, arm))

    @asynccontextmanager
    async def _hold(
        self,
        job_id: str,
        ttl: timedelta | float | None,
        wait: timedelta | float,
        arm: Collection[Sink | AsyncSink],
    ) -> AsyncGenerator[Lease]:
        check_sinks(self._store, arm, loop=True)
        length = self._holders.length(ttl)
        interval = self._holders.interval(length)
        here = self._holders.open()
        held = await drive_async(here.acquire(check_job_id(job_id), length, check_wait(wait)))
        # Between the two nothing is awaited, and so nothing is cancelled.
        try:
            held = await drive_async(here.arm(held, interval, arm))
            try:
                yield held.lease
            except BaseException as error:
                await drive_async(here.leave(held, error))
                raise
            await drive_async(here.leave(held, None))
        finally:
            here.left(held)

    async def acquire(
        self, job_id: str, *, ttl: timedelta | float | None = None, wait: timedelta | float = 0.0
    ) -> Lease:
        """As `sinkfence.Leases.acquire`."""
        acquiring = self._holders.open().acquire(
            check_job_id(job_id), self._holders.length(ttl), check_wait(wait)
        )
        return (await drive_async(acquiring)).lease

    async def get(self, job_id: str) -> Record | None:
        """As `sinkfence.Leases.get`."""
        return await self._store.get(job_id)

    async def list(self, prefix: str = "") -> Sequence[Record]:
        """As `sinkfence.Leases.list`."""
        return await self._store.list(check_prefix(prefix))

    async def reopen(self, job_id: str) -> Record:
        """As `sinkfence.Leases.reopen`."""
        return await self._store.reopen(job_id)

    async def raise_above(self, job_id: str, n: int) -> Record:
        """As `sinkfence.Leases.raise_above`."""
        return await self._store.raise_above(job_id, n)

    async def close(self, timeout: float = 10.0) -> None:
        """As `sinkfence.Leases.close`, for the leases of all loops of the process."""
        try:
            until = self._clock() + check_timeout(timeout)
            await self._asking.drain(until - self._clock())
            # The heartbeat's connections release, whichever loop is gone.
            left = max(until - self._clock(), 0.0)
            # Not in the loop's own threads, which may all be busy.
            thread = ThreadPoolExecutor(1, "sinkfence-closes")
            await asyncio.get_running_loop().run_in_executor(thread, self._holders.close, left)
        finally:
            await self._store.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("Leases stay with their process: make them in each, and pass a lease.token")

    async def __aenter__(self) -> Leases:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ExceptionGroup as group:
            if error is None:
                raise
            log.warning("closing after an error: %s", group.exceptions)


async def _arm(sink: Any, token: Token) -> None:
    answer: Any
    if is_async(sink):
        answer = sink.arm(token)
    else:
        try:
            answer = await asyncio.to_thread(sink.arm, token)
        except RuntimeError as error:
            error.add_note("An arm() that is no `async def` is called in a thread, where no event loop runs.")
            raise
    if is_future(answer):
        answer = asyncio.wrap_future(answer)
    if inspect.isawaitable(answer):  # of a sink, too, that passes on what an asynchronous one answers
        await answer
