"""The door of a WSGI application (PEP 3333)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from http.client import responses
from itertools import chain, islice
from typing import Any, Final

from sinkfence.errors import MissingToken
from sinkfence.sinks import Claim
from sinkfence.tokens import Token
from sinkfence_http import bodies, wire
from sinkfence_http.answers import ACCEPTED, ARMED, TOKEN_REQUIRED, Answer
from sinkfence_http.door import idempotency_key, present, recorded_answer, turn_away
from sinkfence_http.fence import Fence, key_of
from sinkfence_http.functions import check_function, is_exempt
from sinkfence_http.passage import PASSAGE, Passage
from sinkfence_http.records import Kept, identity
from sinkfence_http.wsgi_recorder import Headers, Recorder

Environ = dict[str, Any]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_TOKEN, _KEY = ("HTTP_" + name.upper().replace("-", "_") for name in (wire.TOKEN, wire.IDEMPOTENCY_KEY))
_STATUS: Final = wire.STATUS.lower()
_HEAD_SENT: Final = b""
_UNCLAIMED: Final = nullcontext()


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
        if exempt is not None:
            check_function("exempt", exempt)
        self._app = app
        self._fence = fence
        self._exempt = exempt

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        socket = _is_websocket(environ)
        if self._is_inside(environ):
            return self._app(environ, start_response)
        if (environ["REQUEST_METHOD"] in wire.SAFE and not socket) or is_exempt(self._exempt, environ):
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
        response = self._respond(environ, start_response)
        # Until the head was sent: some servers read it as soon as they are given the body.
        next(response)
        return response

    def _respond(self, environ: Environ, start_response: StartResponse) -> Generator[bytes]:
        """Yield nothing once the head was sent, and then the body.

        The handler may run on while its body is read: the gate is held until that has ended, or the server
        calls close(). Not by close() alone: Werkzeug skips it when its client resets the connection.
        """
        fence, replay = self._fence, self._fence.replay
        inside = False
        try:
            values = _values(environ, _TOKEN)
            token = present(values, fence.verifier)
            fence.announce(token)
            if environ["REQUEST_METHOD"] == "POST" and environ.get("PATH_INFO") == wire.ARM_PATH:
                yield from [_HEAD_SENT, *_answer(start_response, ARMED)]
                return
            record: str | None = None
            claimed: AbstractContextManager[Claim | None] = _UNCLAIMED
            if replay is not None and (key := idempotency_key(_values(environ, _KEY))) is not None:
                # Read before the gate is entered: a slow sender must not keep a newer owner waiting.
                digest = bodies.read(environ, replay.max_body)
                record = key_of(fence, environ, values[0], token, key)
                claimed = replay.claim(token, record, _fingerprint(environ, token, digest))
            with fence.gate.enter(token) as watch, claimed as claim:
                inside = True
                if claim is not None and (answer := recorded_answer(claim)) is not None:
                    yield from [_HEAD_SENT, *_answer(start_response, answer)]
                    return
                passage = environ[PASSAGE] = Passage(token, fence, watch, record)
                recorder = Recorder(passage, claim, replay) if claim and replay else None
                yield from self._run(environ, _Head(passage, start_response, recorder))
        except Exception as error:
            if inside:
                raise
            # Whatever it is, the door stays shut.
            yield from [_HEAD_SENT, *_answer(start_response, turn_away(error))]

    def _run(self, environ: Environ, head: _Head) -> Generator[bytes]:
        passage, recorder = head.passage, head.recorder
        body: Any = ()
        rest: Iterator[bytes] = iter(())
        first: list[bytes] = []
        try:
            try:
                body = self._app(environ, head.start)
                rest = iter(body)
                first = list(islice(rest, 1))
                instead = head.send()
            except Exception as error:
                answer = passage.refusal(error, started=head.sent)
                if answer is None:
                    raise
                instead = head.answer(answer)
            yield _HEAD_SENT
            if instead is not None:
                yield from instead
            else:
                whole = chain(first, rest)
                yield from whole if recorder is None else recorder.recorded(whole)
        except Exception as error:
            if head.sent:
                passage.refusal(error, started=True)  # for the log
            raise
        finally:
            try:
                if hasattr(body, "close"):
                    body.close()
            finally:
                if recorder is not None:
                    recorder.report(ended=True)


class _Head:
    """The head of an application's response, kept back until the first bytes are there.

    So a refusal that comes before them, out of the application or its generator, still finds an answer.
    """

    def __init__(self, passage: Passage, start_response: StartResponse, recorder: Recorder | None) -> None:
        self.passage = passage
        self._start_response = start_response
        self.recorder = recorder
        self._head: tuple[str, Headers] | None = None
        self.sent = False
        self._write: Write | None = None  # what the server's start_response has returned
        self._instead: list[bytes] | None = None

    def start(self, status: str, headers: Headers, exc_info: Any = None) -> Write:
        """Take the head (PEP 3333, start_response)."""
        if self.sent and exc_info is not None:
            raise exc_info[1].with_traceback(exc_info[2])
        self._head = status, headers
        return self._write_early

    def _write_early(self, data: bytes) -> None:
        self.send()
        if self._write is not None:
            if self.recorder is not None:
                self.recorder.add(data)
            self._write(data)

    def send(self) -> list[bytes] | None:
        """Send the head, or another answer instead: its body is returned."""
        if self.sent:
            return self._instead
        if self._head is None:
            raise RuntimeError("the application has not called start_response")
        status, headers = self._head
        self.sent = True
        answer = self.passage.judge(int(status[:3]))
        if answer is not None:
            self._instead = self.answer(answer)
        else:
            own = [pair for pair in headers if pair[0].lower() != _STATUS]
            if self.recorder is not None:
                self.recorder.start(int(status[:3]), own)
            self._write = self._start_response(status, [*own, (wire.STATUS, ACCEPTED)])
        return self._instead

    def answer(self, answer: Answer) -> list[bytes]:
        """Send the door's own answer's head, and return its body."""
        return _answer(self._start_response, answer)


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
