"""The HTTP service of the scenarios: it writes what it is sent into the table, in a guarded transaction."""

from __future__ import annotations

import socket
from typing import Any

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sinkfence.demo import child
from sinkfence.tokens import Token
from sinkfence.torture.scenarios.destinations import INSERT, Write
from sinkfence_http import TrustedNetwork
from sinkfence_http.aio import Fence
from sinkfence_http.asgi import FencingMiddleware
from sinkfence_postgres.aio import PostgresSink, transaction


def application(dsn: str, *, fenced: bool) -> Starlette:
    """Return the service with its fence, or as most are: it writes whenever it is asked to."""
    fence = Fence(PostgresSink(dsn), TrustedNetwork())

    async def effect(request: Request) -> JSONResponse:
        told: dict[str, Any] = await request.json()
        token = Token(told["job"], told["generation"], told["owner"])
        write = Write(token, told["id"])
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            if fenced:
                admitted = await fence.admit(request.scope, token.job_id)
                async with transaction(conn, admitted):
                    await conn.execute(INSERT, write.row)
            else:
                await conn.execute(INSERT, write.row)
        return JSONResponse({"id": write.id})

    middleware = [Middleware(Telling)]
    if fenced:
        middleware.append(Middleware(FencingMiddleware, fence=fence))
    return Starlette(routes=[Route("/effects", effect, methods=["POST"])], middleware=middleware)


class Telling:
    """Tells the scenario of each answer to a write: whoever sent it may have gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def tell_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["path"] == "/effects":
                child.tell("answered", status=message["status"])
            await send(message)

        await self._app(scope, receive, tell_and_send)


def main() -> None:
    """Serve on a free port of 127.0.0.1, and tell which."""
    brief = child.enter()
    app = application(brief["dsn"], fenced=brief["fenced"])
    # A connection whose request is held on its way must be there when it arrives.
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=600))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child.tell("listens", port=listener.getsockname()[1])
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
