"""A Starlette service that refuses a stale owner: uvicorn starlette_service:app

DATABASE_URL is a URL of SQLAlchemy (postgresql+psycopg://...), of a database in which
`sinkfence_postgres.install` was run. public.pem is the workers' key.
"""

import os
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from sinkfence_http import SignedTokens, VerificationKey
from sinkfence_http.aio import Fence
from sinkfence_http.frameworks import install
from sinkfence_postgres.aio import PostgresSink, transaction

engine = create_async_engine(os.environ["DATABASE_URL"])
keys = {"2026-05": VerificationKey(key=Path("public.pem").read_bytes(), alg="EdDSA", issuer="workers")}
fence = Fence(PostgresSink(engine), SignedTokens(keys, audience="accounts"))


async def pay(request: Request) -> JSONResponse:
    """Pay into an account, as its owner."""
    account: int = request.path_params["account"]  # converted by the route, where /accounts/007 is account 7
    amount = int(request.query_params["amount"])
    token = await fence.admit(request.scope, f"account-{account}")
    async with engine.connect() as connection, transaction(connection, token):
        await connection.execute(
            text("INSERT INTO payment (account, amount) VALUES (:account, :amount)"),
            {"account": account, "amount": amount},
        )
    return JSONResponse({"paid": amount})  # committed by now


async def ping(request: Request) -> PlainTextResponse:
    """A route for senders without a token."""
    return PlainTextResponse("pong")


app = Starlette(
    routes=[
        Route("/accounts/{account:int}", pay, methods=["POST"]),
        Route("/webhooks/ping", ping, methods=["POST"]),
    ]
)
install(app, fence, exempt=lambda scope: scope["path"].startswith("/webhooks/"))
