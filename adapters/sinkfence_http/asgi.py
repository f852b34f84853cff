"""The door of an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

from sinkfence_http import aio, wire
from sinkfence_http.answers import ACCEPTED, ARMED, Answer
from sinkfence_http.door import PASSAGE, Passage, present, turn_away

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN = wire.TOKEN.lower().encode()
_STATUS = wire.STATUS.lower().encode()


class FencingMiddleware:
    """Lets a write in with one authentic token that isn't stale, and out only checked.

    `exempt(scope)` names the routes that are not fenced: they run without a token, and can't admit.
    A WebSocket is refused before it is accepted unless exempt: one handshake can't vouch for what follows.
    Let a proxy before it drop trailers: uvicorn with httptools puts those of a request among its headers.
    """

    def __init__(self, app: App, fence: aio.Fence, *, exempt: Callable[[Scope], bool] | None = None) -> None:
        if not isinstance(fence, aio.Fence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("asgi.FencingMiddleware takes a sinkfence_http.aio.Fence, with an async gate")
        self._app = app
        self._fence = fence
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection (ASGI 3)."""
        if scope["type"] not in ("http", "websocket") or self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._serve(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["method"] in wire.SAFE:
            return True
        if self._exempt is not None and self._exempt(scope):
            return True
        outer = scope.get(PASSAGE)  # the same fence mounted twice, on the application and on a part of it
        return isinstance(outer, Passage) and outer.door is self._fence

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._fence.gate
        async with AsyncExitStack() as stack:
            try:
                values = [
                    value.decode("latin-1") for name, value in scope["headers"] if name.lower() == _TOKEN
                ]
                token = present(values, self._fence.verifier)
                await gate.announce(token)
                if (
                    scope["method"] == "POST"
                    and scope["path"].removeprefix(scope.get("root_path", "")) == wire.ARM_PATH
                ):
                    return await _answer(send, ARMED)
                watch = await stack.enter_async_context(gate.enter(token))
            except Exception as error:  # noqa: BLE001  # whatever it is, the door stays shut
                return await _answer(send, turn_away(error))
            # Set on the scope itself, not on a copy: middleware outside reads what routing leaves there.
            passage = scope[PASSAGE] = Passage(token, self._fence, self._fence.strict, watch)
            response = _Response(passage, send)
            try:
                await self._app(scope, receive, response.send)
            except Exception as error:
                refusal = passage.refusal(error, started=response.started)
                if refusal is None:
                    raise
                if not response.replaced:
                    await _answer(send, refusal)


class _Response:
    def __init__(self, passage: Passage, send: Send) -> None:
        self._passage = passage
        self._send = send
        self.started = False
        self.replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            instead = self._passage.judge(message["status"])
            if instead is not None:
                self.replaced = True
                await _answer(self._send, instead)
                return
            self.started = True
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != _STATUS]
            message = {**message, "headers": [*headers, (_STATUS, ACCEPTED.encode())]}
        if not self.replaced:
            await self._send(message)


async def _answer(send: Send, answer: Answer) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
