"""A service that writes to PostgreSQL, behind the doors of WSGI and ASGI, each under a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from socketserver import ThreadingMixIn
from types import SimpleNamespace
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import sqlalchemy as sa
import uvicorn
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from places.addresses import alchemy
from places.postgres import BY_NAME, named
from sinkfence.sinks import Gate
from sinkfence.tokens import Token
from sinkfence_http import Fence, TrustedNetwork, asgi, wsgi
from sinkfence_http.aio import Fence as AsyncFence
from sinkfence_postgres import PostgresSink, aio, transaction

Write = Callable[[sa.Connection, Token, str, str | None], None]


def guarded(conn: sa.Connection, token: Token, attempt: str, step: str | None) -> None:
    """One row per request and key, in a guarded transaction."""
    with transaction(conn, token):
        conn.execute(BY_NAME, named(token, attempt, step))


def without_key(conn: sa.Connection, token: Token, attempt: str, step: str | None) -> None:
    """A repetition is not told from a new request."""
    guarded(conn, token, attempt, None)


def unguarded(conn: sa.Connection, token: Token, attempt: str, step: str | None) -> None:
    """What the door has seen is thought to be enough."""
    with conn.begin():
        conn.execute(BY_NAME, named(token, attempt, step))


class Open:
    """A gate that lets everybody in."""

    durable = True

    def announce(self, token: Token) -> None:
        pass

    def enter(self, token: Token) -> AbstractContextManager[SimpleNamespace]:
        return nullcontext(SimpleNamespace(committed=True, applied=False, refused=None))


class Quiet(WSGIRequestHandler):
    """Says nothing of requests and of clients that have gone."""

    def log_message(self, *_: object) -> None:
        pass


class Threads(ThreadingMixIn, WSGIServer):
    """A thread per connection: one that is frozen keeps nobody else waiting."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def wsgi_service(dsn: str, *, gate: Gate | None = None, write: Write = guarded) -> Generator[str]:
    """The URL of the service under wsgiref, one connection for each request."""
    engine = sa.create_engine(alchemy(dsn))
    fence = Fence(gate or PostgresSink(engine), TrustedNetwork(), strict=write is not unguarded)

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        token = fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
        with engine.connect() as conn:
            write(conn, token, attempt, environ.get("HTTP_IDEMPOTENCY_KEY"))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([b"done"])

    door = wsgi.FencingMiddleware(app, fence)
    with make_server("127.0.0.1", 0, door, server_class=Threads, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            engine.dispose()


@contextmanager
def asgi_service(dsn: str) -> Generator[str]:
    """The URL of the same service under uvicorn, which keeps connections for further requests."""
    engine = create_async_engine(alchemy(dsn))
    fence = AsyncFence(aio.PostgresSink(engine), TrustedNetwork())

    async def post(request: Request) -> PlainTextResponse:
        token = await fence.admit(request.scope, request.path_params["job"])
        attempt = (await request.body()).decode()
        async with engine.connect() as conn, aio.transaction(conn, token):
            await conn.execute(BY_NAME, named(token, attempt, request.headers.get("Idempotency-Key")))
        return PlainTextResponse("done")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    app = Starlette(
        routes=[Route("/{job:path}", post, methods=["POST"])],
        middleware=[Middleware(asgi.FencingMiddleware, fence=fence)],
        lifespan=lifespan,
    )
    config = uvicorn.Config(app, log_level="critical", timeout_keep_alive=60)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
