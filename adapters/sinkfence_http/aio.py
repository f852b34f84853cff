"""A service's fence, for ASGI."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from sinkfence.errors import NotArmed, StaleToken
from sinkfence.sinks import AsyncGate, AsyncReplay, RequestState, Watch
from sinkfence.tokens import Token
from sinkfence_http import dooronly, verifiers, wire
from sinkfence_http.answers import STALE, Refused
from sinkfence_http.fence import Parts
from sinkfence_http.passage import OPEN, UNWATCHED, passage_of
from sinkfence_http.threads import Threads

if TYPE_CHECKING:
    from sinkfence_http import host_replay


class Fence(Parts[AsyncGate, AsyncReplay]):
    """As `sinkfence_http.Fence`, with an async gate, for `asgi.FencingMiddleware`. Handlers may be sync."""

    _aio = True

    async def announce(self, token: Token) -> None:
        """As `sinkfence_http.Fence.announce`."""
        if self._vouch is not None:
            try:
                await self.gate.check(token)
                return
            except NotArmed:
                await self._vouch(token)
            except StaleToken:
                raise Refused(STALE) from None  # without the mark: anybody can send an unsigned token
        await self.gate.announce(token)

    async def admit(self, scope: Mapping[str, Any], job_id: str) -> Token:
        """As `sinkfence_http.Fence.admit`."""
        return passage_of(scope).admit(job_id)


class AuthorityLookup:
    """As `sinkfence_http.AuthorityLookup`; what `current` returns is awaited."""

    def __init__(self, current: Callable[[str], Awaitable[tuple[int, str | None] | None]]) -> None:
        if not callable(current):
            raise TypeError(f"current is a function, not a {type(current).__name__}")
        self._current = current

    def verify(self, value: str) -> Token:
        """As `sinkfence_http.AuthorityLookup.verify`."""
        return wire.parse_token(value)

    async def vouch(self, token: Token) -> None:
        """As `sinkfence_http.AuthorityLookup.vouch`."""
        verifiers.compare(token, await self._current(token.job_id))


class DoorOnly:
    """As `sinkfence_http.DoorOnly`."""

    def __init__(self) -> None:
        self._gate = dooronly.DoorOnly()

    async def check(self, token: Token) -> None:
        """As `sinkfence_http.DoorOnly.check`."""
        self._gate.check(token)

    async def announce(self, token: Token) -> None:
        """As `sinkfence_http.DoorOnly.announce`."""
        self._gate.announce(token)

    def enter(self, token: Token) -> AbstractAsyncContextManager[Watch]:
        """As `sinkfence_http.DoorOnly.enter`."""
        return OPEN


class HostGate:
    """As `sinkfence_http.HostGate`. The loop waits for no lock and no disk; it looks into small files."""

    def __init__(self, dir: str | os.PathLike[str], *, drain_timeout: float = 10.0) -> None:
        from sinkfence_http import host  # here, as in the face: Windows can't load it

        self._gate = host.HostGate(dir, drain_timeout=drain_timeout)
        self._threads = Threads()

    async def check(self, token: Token) -> None:
        """As `sinkfence_http.HostGate.check`."""
        self._gate.check(token)

    async def announce(self, token: Token) -> None:
        """As `sinkfence_http.HostGate.announce`."""
        try:
            self._gate.check(token)
        except NotArmed:
            steps = self._gate.job(token).announcing()
            # Each step in a thread, for it writes to the disk, and the waiting between them here. Between two
            # steps nothing is locked: it may be cancelled there. A step that runs is run to its end.
            # None of the loop's own threads: handlers that stall may have used those up.
            while (pause := await self._threads.run(lambda: next(steps, None))) is not None:
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def enter(self, token: Token) -> AsyncGenerator[Watch]:
        """As `sinkfence_http.HostGate.enter`."""
        job = self._gate.job(token)
        for pause in job.entering():
            await asyncio.sleep(pause)
        try:  # nothing is awaited between the lock and this
            yield UNWATCHED
        finally:
            job.leave()

    def replay(self, max_body: int = 65536) -> HostReplay:
        """As `sinkfence_http.HostGate.replay`."""
        return HostReplay(self._gate.replay(max_body))


class HostReplay:
    """As the sync one, in threads: SQLite has no other way."""

    def __init__(self, replay: host_replay.HostReplay) -> None:
        self.max_body: int = replay.max_body
        self._replay = replay
        self._threads = Threads()

    @asynccontextmanager
    async def claim(self, token: Token, key: str, fingerprint: str) -> AsyncGenerator[HostClaim]:
        """As `sinkfence.sinks.Replay.claim`."""
        begun = self._threads.start(self._replay.begin, token, key, fingerprint)
        try:
            claim = await asyncio.shield(asyncio.wrap_future(begun))
        except BaseException:
            # The thread goes on, and what it claims would be "in progress" for as long as this process lives.
            # It is told itself: the loop may end before it.
            begun.add_done_callback(self._abandon)
            raise
        try:
            yield HostClaim(claim, self._threads)
        finally:
            claim.close()

    def _abandon(self, begun: Future[host_replay.HostClaim]) -> None:
        if begun.cancelled() or begun.exception() is not None:
            return
        leave = begun.result().leave
        try:
            self._threads.start(leave, undone=True)  # it may wait for the file: not the loop
        except RuntimeError:  # no thread begins any more: the interpreter ends
            leave(undone=True)


class HostClaim:
    """As the sync one."""

    def __init__(self, claim: host_replay.HostClaim, threads: Threads) -> None:
        self._claim = claim
        self._threads = threads
        self.state: RequestState = claim.state
        self.answer: str | None = claim.answer

    async def keep(self, answer: str) -> None:
        """As `sinkfence.sinks.Claim.keep`."""
        await self._threads.run(self._claim.keep, answer)

    async def leave(self, *, undone: bool) -> None:
        """As `sinkfence.sinks.Claim.leave`."""
        await self._threads.run(self._claim.leave, undone=undone)
