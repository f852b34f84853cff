"""The door of an ASGI application."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

from sinkfence.errors import MissingToken
from sinkfence.sinks import AsyncClaim
from sinkfence.tokens import Token
from sinkfence_http import aio, wire
from sinkfence_http.answers import ACCEPTED, ARMED, DIGEST_REQUIRED, TOKEN_REQUIRED, Answer, Refused
from sinkfence_http.door import (
    PASSAGE,
    Passage,
    idempotency_key,
    known,
    log_unkept,
    present,
    turn_away,
)
from sinkfence_http.fence import key_of
from sinkfence_http.records import Kept, Recording, content_digest, identity

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN = wire.TOKEN.lower().encode()
_KEY = wire.IDEMPOTENCY_KEY.lower().encode()
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
        http = scope["type"] == "http"
        if not (http or scope["type"] == "websocket") or self._passes(scope):
            await self._app(scope, receive, send)
        elif self._exempt is not None and self._exempt(scope):
            await self._pass(scope, receive, send)
        elif http:
            await self._serve(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _passes(self, scope: Scope) -> bool:
        if scope["type"] == "http" and scope["method"] in wire.SAFE:
            return True
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
        fence = self._fence
        async with AsyncExitStack() as stack:
            claim: AsyncClaim | None = None
            record: str | None = None
            digest = b""
            try:
                values = _values(scope, _TOKEN)
                token = present(values, fence.verifier)
                await fence.announce(token)
                if (
                    scope["method"] == "POST"
                    and scope["path"].removeprefix(scope.get("root_path", "")) == wire.ARM_PATH
                ):
                    return await _answer(send, ARMED)
                key = idempotency_key(_values(scope, _KEY)) if fence.replay is not None else None
                # Read before the gate is entered: a slow sender must not keep a newer owner waiting.
                if fence.replay is not None and key is not None:
                    digest, receive = await _read(scope, receive, fence.replay.max_body)
                watch = await stack.enter_async_context(fence.gate.enter(token))
                if fence.replay is not None and key is not None:
                    record = key_of(fence, scope, values[0], token, key)
                    fingerprint = _fingerprint(scope, token, digest)
                    claim = await stack.enter_async_context(fence.replay.claim(token, record, fingerprint))
            except _Gone:
                return None
            except Exception as error:  # noqa: BLE001  # whatever it is, the door stays shut
                return await _answer(send, turn_away(error))
            if claim is not None and (answer := known(claim)) is not None:
                return await _answer(send, answer)
            # Set on the scope itself, not on a copy: middleware outside reads what routing leaves there.
            passage = scope[PASSAGE] = Passage(token, fence, fence.strict, watch, record)
            recording = Recording(fence.replay.max_body if fence.replay else 0)
            response = _Response(passage, send, claim, recording)
            try:
                await self._app(scope, receive, response.send)
            except Exception as error:
                refusal = passage.refusal(error, started=response.started)
                if refusal is None:
                    raise
                if not response.replaced:
                    await _answer(send, refusal)
            finally:
                await response.settle()


class _Response:
    def __init__(self, passage: Passage, send: Send, claim: AsyncClaim | None, recording: Recording) -> None:
        self._passage = passage
        self._send = send
        self._claim = claim
        self._recording = recording
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
            if self._claim is not None:
                pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
                self._recording.start(message["status"], pairs)
                await self._settle_whole()
            message = {**message, "headers": [*headers, (_STATUS, ACCEPTED.encode())]}
        if self.replaced:
            return
        if self._claim is not None and message["type"] == "http.response.body":
            self._recording.add(message.get("body", b""))
            if not message.get("more_body", False):
                self._recording.end()
            await self._settle_whole()
        await self._send(message)

    async def _settle_whole(self) -> None:
        # Before the last of it is sent: who has it all may ask again at once.
        if self._recording.whole:
            await self.settle()

    async def settle(self) -> None:
        """Say what has become of the request, once."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        kept = self._recording.kept() if self._passage.keeps(self._recording.status) else None
        try:
            if kept is not None:
                await claim.keep(kept)
            else:
                await claim.leave(undone=self._passage.undone(self._recording.status))
        except Exception:  # noqa: BLE001  # what was done is done, and its caller is told
            log_unkept(self._passage.token)


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


def _fingerprint(scope: Scope, token: Token, digest: bytes) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    content_type = ", ".join(_values(scope, b"content-type"))
    query: bytes = scope.get("query_string", b"")
    return identity(scope["method"], token.job_id, path, query, content_type, digest)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]


async def _answer(send: Send, answer: Answer | Kept) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body or b""})
