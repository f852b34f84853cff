"""The door of a WSGI application (PEP 3333)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from http.client import responses
from itertools import chain, islice
from typing import Any, cast

from sinkfence.errors import MissingToken
from sinkfence.sinks import Claim
from sinkfence.tokens import Token
from sinkfence_http import bodies, wire
from sinkfence_http.answers import ACCEPTED, ARMED, TOKEN_REQUIRED, Answer
from sinkfence_http.door import (
    PASSAGE,
    Passage,
    idempotency_key,
    known,
    log_unkept,
    present,
    turn_away,
)
from sinkfence_http.fence import Fence, key_of
from sinkfence_http.records import Kept, Recording, identity

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_TOKEN, _KEY = ("HTTP_" + name.upper().replace("-", "_") for name in (wire.TOKEN, wire.IDEMPOTENCY_KEY))


class FencingMiddleware:
    """Lets a write in with one authentic token that isn't stale, and out only checked.

    `exempt(environ)` names the routes that are not fenced: they run without a token, and can't admit.
    A WebSocket, which begins as a GET, is refused unless exempt: a handshake can't vouch for what follows.
    The environ can't tell `Fencing_Token` from `Fencing-Token`: serve by a server that drops names with
    underscores, as gunicorn, waitress and Werkzeug do.
    """

    def __init__(self, app: App, fence: Fence, *, exempt: Callable[[Environ], bool] | None = None) -> None:
        if not isinstance(fence, Fence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("wsgi.FencingMiddleware takes a sinkfence_http.Fence, with a sync gate")
        self._app = app
        self._fence = fence
        self._exempt = exempt

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        socket = _is_websocket(environ)
        if (environ["REQUEST_METHOD"] in wire.SAFE and not socket) or self._is_inside(environ):
            return self._app(environ, start_response)
        if self._exempt is not None and self._exempt(environ):
            try:
                return self._app(environ, start_response)
            except MissingToken:
                return _answer(start_response, TOKEN_REQUIRED)
        if socket:
            return _answer(start_response, TOKEN_REQUIRED)
        return self._serve(environ, start_response)

    def _is_inside(self, environ: Environ) -> bool:
        outer = environ.get(PASSAGE)  # the same fence mounted twice, on the application and on a part of it
        return isinstance(outer, Passage) and outer.door is self._fence

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        fence = self._fence
        with ExitStack() as stack:
            claim: Claim | None = None
            record: str | None = None
            try:
                values = _values(environ, _TOKEN)
                token = present(values, fence.verifier)
                fence.announce(token)
                if environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO") == wire.ARM_PATH:
                    return _answer(start_response, ARMED)
                key = idempotency_key(_values(environ, _KEY)) if fence.replay is not None else None
                # Read before the gate is entered: a slow sender must not keep a newer owner waiting.
                digest = bodies.read(environ, fence.replay.max_body) if fence.replay and key else b""
                watch = stack.enter_context(fence.gate.enter(token))
                if fence.replay is not None and key is not None:
                    record = key_of(fence, environ, values[0], token, key)
                    claim = stack.enter_context(
                        fence.replay.claim(token, record, _fingerprint(environ, token, digest))
                    )
            except Exception as error:  # noqa: BLE001  # whatever it is, the door stays shut
                return _answer(start_response, turn_away(error))
            if claim is not None and (answer := known(claim)) is not None:
                return _answer(start_response, answer)
            passage = environ[PASSAGE] = Passage(token, fence, fence.strict, watch, record)
            recording = Recording(fence.replay.max_body if fence.replay else 0)
            response = _Response(passage, start_response, claim, recording)
            # The handler may run on while its body is read: the gate is held until the server calls close().
            stack.callback(response.settle)
            response.run(self._app, environ, stack)
            response.stack = stack.pop_all()
            return response


class _Response:
    """The application's response, its head kept back until its first bytes are there.

    So a refusal that comes before them, out of the application or its generator, still finds an answer. The
    first bytes are waited for before the server is given anything: some servers read the head at that moment.
    """

    def __init__(
        self, passage: Passage, start_response: StartResponse, claim: Claim | None, recording: Recording
    ) -> None:
        self.stack = ExitStack()
        self._passage = passage
        self._claim = claim
        self._recording = recording
        self._start_response = start_response
        self._head: tuple[str, Headers] | None = None
        self._started = False
        self._write: Write | None = None  # what the server's start_response has returned
        self._instead: list[bytes] | None = None
        self._body: Iterator[bytes] = iter(())

    def run(self, app: App, environ: Environ, stack: ExitStack) -> None:
        try:
            body = app(environ, self._start)
            if hasattr(body, "close"):
                stack.callback(cast("Any", body).close)
            rest = iter(body)
            first = list(islice(rest, 1))
            instead = self._send_head()
        except Exception as error:
            answer = self._passage.refusal(error, started=self._started)
            if answer is None:
                raise
            first, rest, instead = [], iter(()), _answer(self._start_response, answer)
        self._body = chain(first, rest) if instead is None else iter(instead)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            data = next(self._body)
        except Exception as error:
            if isinstance(error, StopIteration):
                self._recording.end()
            else:
                self._passage.refusal(error, started=True)  # for the log
            # The handler is done, so the gate is left here and not by the server's close() alone: Werkzeug
            # skips that when its client resets the connection after the last byte. The gate's generator would
            # then be ended by the garbage collector, inside some request of another thread.
            self.close()
            raise
        self._record(data)
        return data

    def close(self) -> None:
        self.stack.close()

    def settle(self) -> None:
        """Say what has become of the request, once."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        kept = self._recording.kept() if self._passage.keeps(self._recording.status) else None
        try:
            if kept is not None:
                claim.keep(kept)
            else:
                claim.leave(undone=self._passage.undone(self._recording.status))
        except Exception:  # noqa: BLE001  # what was done is done, and its caller is told
            log_unkept(self._passage.token)

    def _record(self, data: bytes) -> None:
        if self._claim is not None:
            self._recording.add(data)
            self._settle_whole()

    def _settle_whole(self) -> None:
        # Before the last of it is sent: who has it all may ask again at once.
        if self._recording.whole:
            self.settle()

    def _start(self, status: str, headers: Headers, exc_info: Any = None) -> Write:
        if self._started and exc_info is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        self._head = status, headers
        return self._write_early

    def _write_early(self, data: bytes) -> None:
        self._send_head()
        if self._write is not None:
            self._record(data)
            self._write(data)

    def _send_head(self) -> list[bytes] | None:
        """Send the head, or another answer instead: its body is returned."""
        if self._started:
            return self._instead
        if self._head is None:
            raise RuntimeError("the application has not called start_response")
        status, headers = self._head
        self._started = True
        answer = self._passage.judge(int(status[:3]))
        if answer is not None:
            self._instead = _answer(self._start_response, answer)
        else:
            own = [pair for pair in headers if pair[0].lower() != wire.STATUS.lower()]
            if self._claim is not None:
                self._recording.start(int(status[:3]), own)
                self._settle_whole()
            self._write = self._start_response(status, [*own, (wire.STATUS, ACCEPTED)])
        return self._instead


def _values(environ: Environ, name: str) -> list[str]:
    return [environ[name]] if name in environ else []


def _fingerprint(environ: Environ, token: Token, digest: bytes) -> str:
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}".encode("latin-1")
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    content_type = environ.get("CONTENT_TYPE", "")
    return identity(environ["REQUEST_METHOD"], token.job_id, path, query, content_type, digest)


def _is_websocket(environ: Environ) -> bool:
    return "websocket" in environ.get("HTTP_UPGRADE", "").lower()  # RFC 6455, section 4.2.1


def _answer(start_response: StartResponse, answer: Answer | Kept) -> list[bytes]:
    start_response(f"{answer.status} {responses.get(answer.status, 'Unnamed')}", answer.headers)
    return [answer.body or b""]
