"""The HTTP service of the story: it charges a customer, in its own database."""

from __future__ import annotations

import socket
from typing import Final

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sinkfence_http import SignedTokens, VerificationKey
from sinkfence_http.aio import Fence
from sinkfence_http.asgi import FencingMiddleware
from sinkfence_postgres.aio import PostgresSink, transaction
from sinkfence_trials.demo import child
from sinkfence_trials.demo.places import AUDIENCE, ISSUER, KEY_ID

PATH: Final = "/invoices/{invoice:int}/charge"
INSERT: Final = "INSERT INTO charge VALUES (%s, %s, %s)"


def fenced(dsn: str, public_key: str) -> Starlette:
    """Return the service with a fence: a middleware at the door, a check in the handler's transaction."""
    key = VerificationKey(key=public_key, alg="EdDSA", issuer=ISSUER)
    fence = Fence(PostgresSink(dsn), SignedTokens({KEY_ID: key}, audience=AUDIENCE))

    async def charge(request: Request) -> JSONResponse:
        invoice: int = request.path_params["invoice"]
        token = await fence.admit(request.scope, f"invoice-{invoice}")
        body = await request.json()
        async with await psycopg.AsyncConnection.connect(dsn) as conn, transaction(conn, token):
            await conn.execute(INSERT, (invoice, body["amount"], body["sender"]))
        return JSONResponse({"charged": body["amount"]})

    door = Middleware(FencingMiddleware, fence=fence)
    return Starlette(routes=[Route(PATH, charge, methods=["POST"])], middleware=[door])


def unfenced(dsn: str) -> Starlette:
    """Return the same service as most are today: it charges whenever it is asked to."""

    async def charge(request: Request) -> JSONResponse:
        body = await request.json()
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await conn.execute(INSERT, (request.path_params["invoice"], body["amount"], body["sender"]))
        return JSONResponse({"charged": body["amount"]})

    return Starlette(routes=[Route(PATH, charge, methods=["POST"])])


def main() -> None:
    """Serve on a free port of 127.0.0.1, and tell which."""
    brief = child.enter()
    app = fenced(brief["dsn"], brief["public_key"]) if brief["fenced"] else unfenced(brief["dsn"])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # It listens already: whoever connects from here on waits for uvicorn, and is served.
        child.tell("listens", port=listener.getsockname()[1])
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
