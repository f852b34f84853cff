"""The door of a WSGI application (PEP 3333)."""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, cast

from sinkfence_http import wire
from sinkfence_http.answers import ACCEPTED, ARMED, Answer
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
        gate = self._fence.gate
        with ExitStack() as stack:
            try:
                value = environ.get(_TOKEN)
                token = present([] if value is None else [value], self._fence.verifier)
                gate.announce(token)
                if environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO") == wire.ARM_PATH:
                    return _answer(start_response, ARMED)
                stack.enter_context(gate.enter(token))
            except Exception as error:  # noqa: BLE001  # whatever it is, the door stays shut
                return _answer(start_response, turn_away(error))
            passage = environ[PASSAGE] = Passage(token, self._fence)
            response = _Response(passage, start_response)
            response.run(self._app, environ, stack)
            # The handler may run on while its body is read: the gate is held until the server calls close().
            response.stack = stack.pop_all()
            return response

    def _passes(self, environ: Environ) -> bool:
        if environ["REQUEST_METHOD"] in wire.SAFE or (self._exempt is not None and self._exempt(environ)):
            return True
        outer = environ.get(PASSAGE)
        return isinstance(outer, Passage) and outer.fence is self._fence


class _Response:
    """The application's response, its head kept back until its first bytes are there.

    So a refusal that comes before them, out of the application or its generator, still finds an answer.
    """

    def __init__(self, passage: Passage, start_response: StartResponse) -> None:
        self.stack = ExitStack()
        self._passage = passage
        self._start_response = start_response
        self._head: tuple[str, Headers] | None = None
        self._started = False
        self._write: Write | None = None  # what the server's start_response has returned
        self._instead: Iterator[bytes] | None = None
        self._body: Iterator[bytes] = iter(())

    def run(self, app: App, environ: Environ, stack: ExitStack) -> None:
        try:
            body = app(environ, self._start)
            if hasattr(body, "close"):
                stack.callback(cast("Any", body).close)
            self._body = iter(body)
        except Exception as error:
            if not self._refused(error):
                raise

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk: bytes | None = None
        if self._instead is None:
            try:
                chunk = next(self._body, None)
                self._send_head()
            except Exception as error:
                if not self._refused(error):
                    self.close()
                    raise
        if self._instead is not None:
            chunk = next(self._instead, None)
        if chunk is None:
            # The handler is done, so the gate is left here and not by the server's close() alone: Werkzeug
            # skips that when its client resets the connection after the last byte. The gate's generator would
            # then be ended by the garbage collector, inside some request of another thread.
            self.close()
            raise StopIteration
        return chunk

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

    def _send_head(self) -> None:
        if self._started:
            return
        if self._head is None:
            raise RuntimeError("the application has not called start_response")
        status, headers = self._head
        instead = self._passage.judge(int(status[:3]))
        if instead is not None:
            self._replace(instead)
            return
        own = [pair for pair in headers if pair[0].lower() != wire.STATUS.lower()]
        self._started = True
        self._write = self._start_response(status, [*own, (wire.STATUS, ACCEPTED)])

    def _refused(self, error: Exception) -> bool:
        answer = self._passage.refusal(error, started=self._started)
        if answer is not None:
            self._replace(answer)
        return answer is not None

    def _replace(self, answer: Answer) -> None:
        self._started = True
        self._instead = iter(_answer(self._start_response, answer))


def _answer(start_response: StartResponse, answer: Answer) -> list[bytes]:
    start_response(f"{answer.status} {http.HTTPStatus(answer.status).phrase}", answer.headers)
    return [answer.body]
