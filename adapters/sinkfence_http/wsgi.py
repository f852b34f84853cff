"""The door of a WSGI application (PEP 3333)."""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from typing import Any, cast

from sinkfence_http import wire
from sinkfence_http.answers import ACCEPTED, ARMED, TOKEN_REQUIRED, Answer
from sinkfence_http.door import PASSAGE, Passage, present, turn_away
from sinkfence_http.fence import Fence

Environ = dict[str, Any]
Headers = list[tuple[str, str]]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_TOKEN = "HTTP_" + wire.TOKEN.upper().replace("-", "_")


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
        if self._passes(environ):
            return self._app(environ, start_response)
        if _is_websocket(environ):
            return _answer(start_response, TOKEN_REQUIRED)
        gate = self._fence.gate
        with ExitStack() as stack:
            try:
                value = environ.get(_TOKEN)
                token = present([] if value is None else [value], self._fence.verifier)
                gate.announce(token)
                if environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO") == wire.ARM_PATH:
                    return _answer(start_response, ARMED)
                watch = stack.enter_context(gate.enter(token))
            except Exception as error:  # noqa: BLE001  # whatever it is, the door stays shut
                return _answer(start_response, turn_away(error))
            passage = environ[PASSAGE] = Passage(token, self._fence, self._fence.strict, watch)
            response = _Response(passage, start_response)
            response.run(self._app, environ, stack)
            # The handler may run on while its body is read: the gate is held until the server calls close().
            response.stack = stack.pop_all()
            return response

    def _passes(self, environ: Environ) -> bool:
        if environ["REQUEST_METHOD"] in wire.SAFE and not _is_websocket(environ):
            return True
        if self._exempt is not None and self._exempt(environ):
            return True
        outer = environ.get(PASSAGE)
        return isinstance(outer, Passage) and outer.door is self._fence


class _Response:
    """The application's response, its head kept back until its first bytes are there.

    So a refusal that comes before them, out of the application or its generator, still finds an answer. The
    first bytes are waited for before the server is given anything: some servers read the head at that moment.
    """

    def __init__(self, passage: Passage, start_response: StartResponse) -> None:
        self.stack = ExitStack()
        self._passage = passage
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
            return next(self._body)
        except Exception as error:
            if not isinstance(error, StopIteration):
                self._passage.refusal(error, started=True)  # for the log
            # The handler is done, so the gate is left here and not by the server's close() alone: Werkzeug
            # skips that when its client resets the connection after the last byte. The gate's generator would
            # then be ended by the garbage collector, inside some request of another thread.
            self.close()
            raise

    def close(self) -> None:
        self.stack.close()

    def _start(self, status: str, headers: Headers, exc_info: Any = None) -> Write:
        if self._started and exc_info is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        self._head = status, headers
        return self._write_early

    def _write_early(self, data: bytes) -> None:
        self._send_head()
        if self._write is not None:
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
            self._write = self._start_response(status, [*own, (wire.STATUS, ACCEPTED)])
        return self._instead


def _is_websocket(environ: Environ) -> bool:
    return "websocket" in environ.get("HTTP_UPGRADE", "").lower()  # RFC 6455, section 4.2.1


def _answer(start_response: StartResponse, answer: Answer) -> list[bytes]:
    start_response(f"{answer.status} {http.HTTPStatus(answer.status).phrase}", answer.headers)
    return [answer.body]
