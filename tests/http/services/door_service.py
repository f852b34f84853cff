"""One small service, by three frameworks, behind the door: python door_service.py FRAMEWORK FD SETTINGS."""
# ruff: noqa: B008  # FastAPI's way

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from memory_gate import AsyncMemoryGate, MemoryGate

import sinkfence_http
from sinkfence import Token
from sinkfence_http import SignedTokens, TrustedNetwork, VerificationKey, aio, asgi, wsgi

if sys.argv[1] == "fastapi":  # its annotations are looked up among the module's names
    from fastapi import Depends, FastAPI, Request

SETTINGS: dict[str, Any] = json.loads(sys.argv[3])
GATE = MemoryGate()


def verifier() -> Any:
    if "keys" not in SETTINGS:
        return TrustedNetwork()
    keys = {kid: VerificationKey(**fields) for kid, fields in SETTINGS["keys"].items()}
    return SignedTokens(keys, SETTINGS["audience"])


def effects_of(job_id: str) -> list[int]:
    return [generation for job, generation in GATE.effects if job == job_id]


def state(job_id: str) -> dict[str, Any]:
    mark = GATE.marks.mark(job_id)
    return {"effects": effects_of(job_id), "mark": mark and mark.generation, "entered": len(GATE.entered)}


def starlette_app() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.routing import Mount, Route, WebSocketRoute

    fence = aio.Fence(AsyncMemoryGate(GATE), verifier(), strict=SETTINGS.get("strict", True))

    async def account(request: Any) -> Any:
        job_id = f"account-{request.path_params['account']}"
        if request.method in ("GET", "HEAD"):
            return JSONResponse(state(job_id))
        token = await fence.admit(request.scope, job_id)
        with GATE.transaction(token):
            size = len(await request.body())
        return JSONResponse({"size": size}, headers={"Fencing-Status": "made-up"})

    async def forgets(request: Any) -> Any:
        return PlainTextResponse("done")

    async def uncommitted(request: Any) -> Any:
        await fence.admit(request.scope, f"account-{request.path_params['account']}")
        return PlainTextResponse("done")

    async def streams(request: Any) -> Any:
        token = await fence.admit(request.scope, f"account-{request.path_params['account']}")
        with GATE.transaction(token):
            pass

        async def chunks() -> AsyncIterator[bytes]:
            for number in range(5):
                yield b"%d" % number

        return StreamingResponse(chunks())

    async def late(request: Any) -> Any:
        token = await fence.admit(request.scope, f"account-{request.path_params['account']}")

        async def chunks() -> AsyncIterator[bytes]:
            yield b"0"
            with GATE.transaction(token):
                pass
            yield b"1"

        return StreamingResponse(chunks())

    async def crashes(request: Any) -> Any:
        raise RuntimeError("the password is swordfish")

    async def see_other(request: Any) -> Any:
        return PlainTextResponse("", status_code=303, headers={"Location": "/"})

    async def breaks(request: Any) -> Any:
        GATE.broken = ConnectionError("host=db password=swordfish") if request.method == "GET" else None
        return PlainTextResponse("")

    async def sock(websocket: Any) -> None:
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    methods = ["GET", "POST", "PUT", "PURGE", "DELETE"]
    routes = [
        Route("/accounts/{account:int}", account, methods=methods),
        Route("/forgets", forgets, methods=methods),
        Route("/uncommitted/{account:int}", uncommitted, methods=methods),
        Route("/streams/{account:int}", streams, methods=methods),
        Route("/late/{account:int}", late, methods=methods),
        Route("/crashes", crashes, methods=methods),
        Route("/see-other", see_other, methods=methods),
        Route("/break", breaks, methods=methods),
        Route("/open/hook", forgets, methods=methods),
        WebSocketRoute("/socket", sock),
        WebSocketRoute("/open/socket", sock),
    ]
    started: list[str] = []

    async def lifespan(app: Any) -> AsyncIterator[None]:
        started.append("yes")
        yield

    async def started_up(request: Any) -> Any:
        return JSONResponse(started)

    import contextlib

    app = Starlette(
        routes=[Mount("/sub", routes=routes), Route("/started", started_up), *routes],
        lifespan=contextlib.asynccontextmanager(lifespan),
    )
    app.add_middleware(
        asgi.FencingMiddleware, fence=fence, exempt=lambda scope: scope["path"].startswith("/open/")
    )
    return app


def fastapi_app() -> Any:
    fence = aio.Fence(AsyncMemoryGate(GATE), verifier())
    app = FastAPI()
    app.add_middleware(
        asgi.FencingMiddleware, fence=fence, exempt=lambda scope: scope["path"].startswith("/open/")
    )

    async def caller(account: int, request: Request) -> Token:
        return await fence.admit(request.scope, f"account-{account}")

    def session(token: Token = Depends(caller)) -> Iterator[None]:
        with GATE.transaction(token):
            yield

    @app.get("/accounts/{account}")
    def read(account: int) -> dict[str, Any]:
        return state(f"account-{account}")

    # A sync handler, in a thread of the pool, behind the async door.
    @app.post("/accounts/{account}")
    def pay(account: int, token: Token = Depends(caller)) -> dict[str, int]:
        with GATE.transaction(token):
            return {"size": 0}

    @app.post("/forgets")
    @app.post("/open/hook")
    def forgets() -> str:
        return "done"

    @app.post("/uncommitted/{account}")
    def uncommitted(account: int, token: Token = Depends(caller)) -> str:
        return "done"

    @app.post("/late/{account}", dependencies=[Depends(session)])
    def late(account: int) -> str:
        return "done"

    return app


def flask_app() -> Any:
    import flask

    fence = sinkfence_http.Fence(GATE, verifier())
    app = flask.Flask(__name__)

    @app.get("/accounts/<int:account>")
    def read(account: int) -> Any:
        return state(f"account-{account}")

    @app.route("/accounts/<int:account>", methods=["POST", "PUT", "PURGE", "DELETE"])
    def pay(account: int) -> Any:
        token = fence.admit(flask.request.environ, f"account-{account}")
        with GATE.transaction(token):
            size = len(flask.request.get_data())
        return {"size": size}, 200, {"Fencing-Status": "made-up"}

    @app.post("/forgets")
    @app.post("/open/hook")
    def forgets() -> str:
        return "done"

    @app.post("/uncommitted/<int:account>")
    def uncommitted(account: int) -> str:
        fence.admit(flask.request.environ, f"account-{account}")
        return "done"

    def body(account: int, *, early: bool) -> Iterator[bytes]:
        token = fence.admit(flask.request.environ, f"account-{account}")
        if early:
            yield b"0"
        with GATE.transaction(token):
            pass
        yield from (b"%d" % number for number in range(early, 5))

    @app.post("/streams/<int:account>")
    def streams(account: int) -> Any:
        return flask.Response(flask.stream_with_context(body(account, early=False)))

    @app.post("/late/<int:account>")
    def late(account: int) -> Any:
        return flask.Response(flask.stream_with_context(body(account, early=True)))

    @app.post("/crashes")
    def crashes() -> str:
        raise RuntimeError("the password is swordfish")

    @app.get("/break")
    def breaks() -> str:
        GATE.broken = ConnectionError("host=db password=swordfish")
        return ""

    return wsgi.FencingMiddleware(
        app, fence, exempt=lambda environ: environ["PATH_INFO"].startswith("/open/")
    )


def main(framework: str, descriptor: int) -> None:
    logging.basicConfig()
    app = {"starlette": starlette_app, "fastapi": fastapi_app, "flask": flask_app}[framework]()
    if framework == "flask":
        from werkzeug.serving import make_server

        make_server("127.0.0.1", 0, app, threaded=True, fd=descriptor).serve_forever()
    else:
        import uvicorn

        # Of the two parsers, the one that lets a method through which nobody knows.
        root_path = SETTINGS.get("root_path", "")
        config = uvicorn.Config(app, log_level="warning", http="h11", root_path=root_path)
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
