"""A service behind the door, its callers, and a gate of another kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import requests

from mutants.scenes import Ground
from mutants.scenes.tables import Table
from sinkfence.marks import MemoryMarks, admit
from sinkfence.tokens import Token
from sinkfence_http import Fence, TrustedNetwork, wire, wsgi
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink

App = Callable[..., Iterable[bytes]]


class Quiet(WSGIRequestHandler):
    """Says nothing of requests and of clients that have gone."""

    def log_message(self, *_: object) -> None:
        pass


class Threads(ThreadingMixIn, WSGIServer):
    """A thread per connection, which is waited for when the server is closed."""

    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Shop:
    """A service that writes to a table, and its callers."""

    def __init__(self, ground: Ground) -> None:
        self.table = Table(ground)
        self.scene = self.table.scene
        self.fence = Fence(PostgresSink(self.table.dsn), TrustedNetwork())
        self.between: list[Callable[[], None]] = []
        """What happens between a handler's beginning and its writing."""

    def handle(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """The service as its author writes it: check and effect in one transaction, then the answer."""
        token = self.fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = body_of(environ)
        for act in [self.between.pop()] if self.between else []:
            act()
        self.table.write(token, attempt)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    @contextmanager
    def open(self, app: App | None = None, *, fenced: bool = True) -> Generator[str]:
        """Serve, and return the address."""
        app = app or self.handle
        served = wsgi.FencingMiddleware(app, self.fence) if fenced else app
        with make_server("127.0.0.1", 0, served, server_class=Threads, handler_class=Quiet) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    def arm(self, url: str, token: Token) -> None:
        """Arm as a caller does."""
        with requests.Session() as session:
            session.trust_env = False
            HttpSink(session, url).arm(token)

    def post(self, url: str, token: Token, attempt: str, job: str = "", key: str = "") -> None:
        """Post as a caller does, without an idempotency key unless one is given."""
        with requests.Session() as session:
            session.trust_env = False
            session.mount(url, FencedAdapter(token))
            session.headers.update({wire.IDEMPOTENCY_KEY: key} if key else {})
            session.post(f"{url}/{job or token.job_id}", data=attempt, timeout=30).raise_for_status()


def body_of(environ: dict[str, Any]) -> str:
    """What was posted."""
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()


class Vouched:
    """What a draining gate has seen of a handler: it vouches for all of them."""

    committed, applied, refused = True, False, None


class Draining:
    """Lets a newer owner in when the older one's requests have left: a gate whose handlers need no check."""

    def __init__(self) -> None:
        self.marks = MemoryMarks()
        self.inside: list[Token] = []
        self.changed = threading.Condition()
        self.waits = threading.Event()

    def announce(self, token: Token) -> None:
        self.marks.arm(token)
        with self.changed:
            if any(other.generation < token.generation for other in self.inside):
                self.waits.set()
            self.changed.wait_for(
                lambda: all(other.generation >= token.generation for other in self.inside), timeout=30
            )

    @contextmanager
    def enter(self, token: Token) -> Generator[Vouched]:
        with self.changed:
            admit(token, self.marks.mark(token.job_id))
            self.inside.append(token)
        try:
            yield Vouched()
        finally:
            with self.changed:
                self.inside.remove(token)
                self.changed.notify_all()
