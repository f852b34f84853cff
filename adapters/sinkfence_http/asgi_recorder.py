"""What an ASGI application answers, kept while it goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from sinkfence.sinks import AsyncClaim
from sinkfence_http.door import log_unkept
from sinkfence_http.passage import Passage
from sinkfence_http.records import Recording

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Recorder:
    """Keeps a response while it goes out, for the repetitions of its request."""

    def __init__(self, passage: Passage, claim: AsyncClaim, max_body: int, send: Send) -> None:
        self._passage = passage
        self._claim: AsyncClaim | None = claim
        self._recording = Recording(max_body)
        self._send = send

    async def send(self, message: Message) -> None:
        """Note a part of the response, and send it on."""
        recording = self._recording
        if message["type"] == "http.response.start":
            pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            recording.start(message["status"], pairs)
        elif message["type"] == "http.response.body":
            recording.add(message.get("body", b""))
            if not message.get("more_body", False):
                recording.end()
        # Before the last of it is sent: who has it all may ask again at once.
        if recording.whole:
            await self.report(ended=False)
        await self._send(message)

    def watched(self, receive: Receive) -> Receive:
        """Return how the application receives, with what it hears of its caller noted."""

        async def watched() -> Message:
            message = await receive()
            # A StreamingResponse then stops, and a BaseHTTPMiddleware around it puts a regular end to that.
            if message["type"] == "http.disconnect":
                self._recording.caller_left()
            return message

        return watched

    async def report(self, *, ended: bool) -> None:
        """Say what has become of the request, once: that nothing has, not before its handler has ended."""
        claim = self._claim
        if claim is None:
            return
        kept, undone = self._passage.ending(self._recording)
        if undone and kept is None and not ended:
            return
        self._claim = None
        await _to_its_end(self._note(claim, kept, undone))

    async def _note(self, claim: AsyncClaim, kept: str | None, undone: bool) -> None:
        try:
            if kept is not None:
                await claim.keep(kept)
            else:
                await claim.leave(undone=undone)
        except Exception:  # noqa: BLE001  # what was done is done, and its caller is told
            log_unkept(self._passage.token)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    # A cancelled scope of anyio's cancels at each await inside of it, so also where the door notes that an
    # attempt has committed. Without the note, the caller's repetition would be run as a first request.
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
