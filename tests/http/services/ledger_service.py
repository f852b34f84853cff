"""A service as its author writes it, on PostgreSQL: python ledger_service.py FRAMEWORK FD SETTINGS."""
# ruff: noqa: B008  # FastAPI's way

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import sqlalchemy as sa

import sinkfence_http
import sinkfence_postgres
import sinkfence_postgres.aio
from sinkfence import StaleToken, Token
from sinkfence_http import SignedTokens, VerificationKey, aio, asgi, wsgi

if sys.argv[1] == "fastapi":
    import uvicorn
    from fastapi import Depends, FastAPI, Request
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
else:
    import flask
    from werkzeug.serving import make_server

SETTINGS: dict[str, Any] = json.loads(sys.argv[3])
URL = SETTINGS["dsn"].replace("postgresql://", "postgresql+psycopg://", 1)
KEY = VerificationKey(key=SETTINGS["key"], alg="EdDSA", issuer="workers")
VERIFIER = SignedTokens({"k1": KEY}, "ledger")
PAY = sa.text("insert into payment (account, generation, note) values (:account, :generation, :note)")
# The test holds this lock exclusively: whoever asks for it stands still in a place that pg_locks shows.
STALL = sa.text("select pg_advisory_xact_lock_shared(1)")


def keep(stale: StaleToken, kept: str) -> dict[str, Any]:
    """Do with a refusal what frameworks do."""
    if kept == "listed":
        return {"errors": [str(stale)]}
    raise ExceptionGroup("of several tasks", [ValueError(), stale]) if kept == "grouped" else stale


def fastapi_app() -> FastAPI:
    engine = create_async_engine(URL, pool_size=10)
    fence = aio.Fence(sinkfence_postgres.aio.PostgresSink(engine), VERIFIER)
    app = FastAPI()
    app.add_middleware(asgi.FencingMiddleware, fence=fence)

    async def caller(account: int, request: Request) -> Token:
        return await fence.admit(request.scope, f"account-{account}")

    part = FastAPI()
    app.mount("/part", part)  # it has a 500 of its own for every error

    @app.post("/accounts/{account}")
    @part.post("/accounts/{account}")
    async def pay(
        account: int, token: Token = Depends(caller), note: str = "", stall: str = "", kept: str = ""
    ) -> dict[str, Any]:
        row = {"account": account, "generation": token.generation, "note": note}
        if stall == "between":
            async with AsyncSession(engine) as session, sinkfence_postgres.aio.transaction(session, token):
                await session.execute(PAY, row)
        if stall in ("before", "between"):
            async with AsyncSession(engine) as session:
                await session.execute(STALL)
        try:
            async with AsyncSession(engine) as session, sinkfence_postgres.aio.transaction(session, token):
                if stall == "inside":
                    await session.execute(STALL)
                await session.execute(PAY, row)
        except StaleToken as stale:
            return keep(stale, kept)
        return {"paid": account}

    async def guarded(token: Token = Depends(caller)) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, sinkfence_postgres.aio.transaction(session, token):
            yield session

    @app.post("/late/{account}")
    async def late(account: int, session: AsyncSession = Depends(guarded)) -> dict[str, int]:
        await session.execute(PAY, {"account": account, "generation": 0, "note": "late"})
        return {"paid": account}

    @app.post("/forgets/{account}")
    async def forgets(account: int) -> dict[str, int]:
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(PAY, {"account": account, "generation": 0, "note": "forgot"})
        return {"paid": account}

    return app


def flask_app() -> Any:
    engine = sa.create_engine(URL, pool_size=10)
    fence = sinkfence_http.Fence(sinkfence_postgres.PostgresSink(engine), VERIFIER)
    app = flask.Flask(__name__)

    @app.post("/accounts/<int:account>")
    @app.post("/part/accounts/<int:account>")
    def pay(account: int) -> dict[str, Any]:
        token = fence.admit(flask.request.environ, f"account-{account}")
        note, stall = flask.request.args.get("note", ""), flask.request.args.get("stall")
        row = {"account": account, "generation": token.generation, "note": note}
        if stall == "between":
            with engine.connect() as connection, sinkfence_postgres.transaction(connection, token):
                connection.execute(PAY, row)
        if stall in ("before", "between"):
            with engine.connect() as connection:
                connection.execute(STALL)
        try:
            with engine.connect() as connection, sinkfence_postgres.transaction(connection, token):
                if stall == "inside":
                    connection.execute(STALL)
                connection.execute(PAY, row)
        except StaleToken as stale:
            return keep(stale, flask.request.args.get("kept", ""))
        return {"paid": account}

    @app.post("/forgets/<int:account>")
    def forgets(account: int) -> dict[str, int]:
        with engine.begin() as connection:
            connection.execute(PAY, {"account": account, "generation": 0, "note": "forgot"})
        return {"paid": account}

    return wsgi.FencingMiddleware(app, fence)


def main(framework: str, descriptor: int) -> None:
    logging.basicConfig()
    if framework == "flask":
        make_server("127.0.0.1", 0, flask_app(), threaded=True, fd=descriptor).serve_forever()
    else:
        config = uvicorn.Config(fastapi_app(), log_level="warning")
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
