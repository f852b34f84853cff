"""The door of an ASGI application."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from sinkfence.errors import MissingToken
from sinkfence.sinks import AsyncClaim
from sinkfence.tokens import Token
from sinkfence_http import aio, wire
from sinkfence_http.answers import ACCEPTED, ARMED, DIGEST_REQUIRED, TOKEN_REQUIRED, Answer, Refused
from sinkfence_http.asgi_recorder import Message, Receive, Recorder, Send
from sinkfence_http.door import idempotency_key, present, recorded_answer, turn_away
from sinkfence_http.fence import key_of
from sinkfence_http.functions import check_function, is_exempt
from sinkfence_http.passage import PASSAGE, Passage
from sinkfence_http.records import Kept, content_digest, identity

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN = wire.TOKEN.lower().encode()
_KEY = wire.IDEMPOTENCY_KEY.lower().encode()
_STATUS = wire.STATUS.lower().encode()
_ACCEPTED = _STATUS, ACCEPTED.encode()
_UNSEEN = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""Extensions by which a server sends a file itself: the door doesn't see it, and can't keep it."""


class FencingMiddleware:
    """Lets a write in with one authentic token that isn't stale, and out only checked.

    `exempt(scope)` names the routes that are not fenced: they run without a token, and can't admit.
    A WebSocket is refused before it is accepted unless exempt: one handshake can't vouch for what follows.
    Let a proxy before it drop trailers: uvicorn with httptools puts those of a request among its headers.
    """

    def __init__(self, app: App, fence: aio.Fence, *, exempt: Callable[[Scope], bool] | None = None) -> None:
        if not isinstance(fence, aio.Fence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("asgi.FencingMiddleware takes a sinkfence_http.aio.Fence, with an async gate")
        if exempt is not None:
            check_function("exempt", exempt)
        self._app = app
        self._fence = fence
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection (ASGI 3)."""
        http = scope["type"] == "http"
        if not (http or scope["type"] == "websocket") or self._is_inside(scope):
            await self._app(scope, receive, send)
        elif (http and scope["method"] in wire.SAFE) or is_exempt(self._exempt, scope):
            await self._pass(scope, receive, send)
        elif http:
            await self._serve(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _is_inside(self, scope: Scope) -> bool:
        outer = scope.get(PASSAGE)  # the same fence mounted twice, on the application and on a part of it
        return isinstance(outer, Passage) and outer.door is self._fence

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = scope["type"] != "http"

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except MissingToken:
            if started:
                raise
            await _answer(send, TOKEN_REQUIRED)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        fence, replay = self._fence, self._fence.replay
        inside = False
        try:
            values = _values(scope, _TOKEN)
            token = present(values, fence.verifier)
            await fence.announce(token)
            if scope["method"] == "POST" and _is_arming(scope):
                return await _answer(send, ARMED)
            record: str | None = None
            claimed: AbstractAsyncContextManager[AsyncClaim] | None = None
            if replay is not None and (key := idempotency_key(_values(scope, _KEY))) is not None:
                # Read before the gate is entered: a slow sender must not keep a newer owner waiting.
                digest, receive = await _read(scope, receive, replay.max_body)
                record = key_of(fence, scope, values[0], token, key)
                claimed = replay.claim(token, record, _fingerprint(scope, token, digest))
            async with fence.gate.enter(token) as watch:
                # Set on the scope itself, not on a copy: middleware outside reads what routing leaves there.
                passage = scope[PASSAGE] = Passage(token, fence, watch, record)
                if replay is None or claimed is None:
                    inside = True
                    return await self._run(scope, receive, _Response(passage, send, None))
                async with claimed as claim:
                    inside = True
                    if (answer := recorded_answer(claim)) is not None:
                        return await _answer(send, answer)
                    _hide(scope)
                    recorder = Recorder(passage, claim, replay.max_body, send)
                    await self._run(scope, recorder.watched(receive), _Response(passage, send, recorder))
        except _Gone:
            return None
        except Exception as error:
            if inside:
                raise
            await _answer(send, turn_away(error))  # whatever it is, the door stays shut

    async def _run(self, scope: Scope, receive: Receive, response: _Response) -> None:
        try:
            await self._app(scope, receive, response.send)
        except Exception as error:
            if not await response.failed(error):
                raise
        finally:
            if response.recorder is not None:
                await response.recorder.report(ended=True)


class _Response:
    """The application's response, or the answer that is sent instead."""

    _started = False
    _replaced = False

    def __init__(self, passage: Passage, send: Send, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self._passage = passage
        self._send = send
        self._accepted: Send = send if recorder is None else recorder.send

    async def send(self, message: Message) -> None:
        """Judge the head, and say in it that the token was accepted."""
        if message["type"] == "http.response.start":
            instead = self._passage.judge(message["status"])
            if instead is not None:
                self._replaced = True
                await _answer(self._send, instead)
                return
            self._started = True
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != _STATUS]
            message = {**message, "headers": [*headers, _ACCEPTED]}
        if not self._replaced:
            await self._accepted(message)

    async def failed(self, error: Exception) -> bool:
        """Answer what the application has raised, if that is a refusal; return whether it is answered."""
        refusal = self._passage.refusal(error, started=self._started)
        if refusal is not None and not self._replaced:
            await _answer(self._send, refusal)
        return refusal is not None


class _Gone(Exception):
    """The client has gone before its body was here: nothing is run."""


async def _read(scope: Scope, receive: Receive, limit: int) -> tuple[bytes, Receive]:
    """Return the digest of a request's body, and how the handler receives that body again."""
    parts: list[bytes] = []
    more, size = True, 0
    while more and size <= limit:
        message = await receive()
        if message["type"] != "http.request":
            raise _Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    body = b"".join(parts)
    digest = hashlib.sha256(body).digest()
    if size > limit:
        declared = content_digest(_values(scope, b"content-digest"))
        if declared is None:
            raise Refused(DIGEST_REQUIRED)
        digest = declared
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": more}]

    async def again() -> Message:
        return read.pop() if read else await receive()

    return digest, again


def _hide(scope: Scope) -> None:
    """Offer the application of an answer that is to be kept no way of sending it past the recorder."""
    offered = scope.get("extensions")
    if offered:  # a dict of its own: a server may use one for all its requests
        scope["extensions"] = {name: each for name, each in offered.items() if name not in _UNSEEN}


def _fingerprint(scope: Scope, token: Token, digest: bytes) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    content_type = ", ".join(_values(scope, b"content-type"))
    query: bytes = scope.get("query_string", b"")
    return identity(scope["method"], token.job_id, path, query, content_type, digest)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    # Servers should write names in lower case, and need not (ASGI, HTTP connection scope).
    length = len(wanted)
    return [
        value.decode("latin-1")
        for name, value in scope["headers"]
        if len(name) == length and name.lower() == wanted
    ]


def _is_arming(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.endswith(wire.ARM_PATH) and path.removeprefix(scope.get("root_path", "")) == wire.ARM_PATH


async def _answer(send: Send, answer: Answer | Kept) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body or b""})
