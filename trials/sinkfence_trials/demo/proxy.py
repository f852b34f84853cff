"""A network that delays: an HTTP proxy that holds a request until it is told to let it go."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"})
"""Header fields between two neighbours (RFC 9110, section 7.6.1): never passed on."""


@dataclass(slots=True)
class HoldingProxy:
    """Passes every request on, but those to `path` only after `release`."""

    port: int
    """Where it listens, on 127.0.0.1."""
    upstream: int
    """The port of the service behind it."""
    path: str
    """The path that is held."""
    held: threading.Event = field(default_factory=threading.Event)
    """Set once a request to `path` has arrived whole and is held."""
    answer: str = ""
    """What the service answered to the request that was held: its status and `Fencing-Status`."""
    _released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        """What a client calls instead of the service."""
        return f"http://127.0.0.1:{self.port}"

    def release(self) -> None:
        """Deliver what is held, and hold no more."""
        self._released.set()

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        """Deliver one request, now or later, and its answer."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if request.path == self.path:
            self.held.set()
            self._released.wait()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.upstream)) as upstream:
            upstream.request(request.command, request.path, body, headers)
            answer = upstream.getresponse()
            content = answer.read()
        if request.path == self.path:
            self.answer = f"status {answer.status}, {answer.getheader('Fencing-Status')}"
        request.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)


@contextlib.contextmanager
def holding_proxy(upstream: int, path: str) -> Generator[HoldingProxy]:
    """Run a `HoldingProxy` in front of a local port; at the end nothing is held any more."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client, or the service, has gone
                proxy.pass_on(self)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the timeline tells the story."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy = HoldingProxy(server.server_address[1], upstream, path)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="proxy")
        thread.start()
        try:
            yield proxy
        finally:
            proxy.release()
            server.shutdown()
            thread.join()
