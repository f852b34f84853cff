"""A service that answers repetitions as it did the first: python replay_service.py FRAMEWORK FD SETTINGS."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import sqlalchemy

import sinkfence_http
import sinkfence_postgres
import sinkfence_postgres.aio
from sinkfence import Token
from sinkfence_http import TrustedNetwork, aio, asgi, wsgi

if sys.argv[1] == "flask":
    import flask
    from werkzeug.serving import make_server
else:
    import anyio
    import uvicorn
    from sqlalchemy.ext.asyncio import create_async_engine
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

SETTINGS: dict[str, Any] = json.loads(sys.argv[3])
CAP = 1000
prctl = getattr(ctypes.CDLL(None), "prctl", None)
PAY = "insert into payment (job, run) values (:job, :run)"
RICH = [
    ("ETag", '"7"'),
    ("Set-Cookie", "a=1"),
    ("Content-Disposition", 'attachment; filename="a,b.json"'),
    ("Set-Cookie", "b=2"),
    ("X-Request-Id", "first"),
    ("Location", "/payments/7"),
    ("Retry-After", "5"),
    ("Content-Encoding", "gzip"),
]


def note(word: str) -> int:
    """Write a line into the log that the test reads, and return its number."""
    descriptor = os.open(SETTINGS["log"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, word.encode() + b"\n")
    number = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.close(descriptor)
    return number


def stall() -> None:
    """Wait for the lock that the test holds."""
    with open(SETTINGS["log"] + ".stall", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def plan(query: dict[str, str], run: int, size: int) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return the answer that the test asked for."""
    if query.get("answer") == "raises":
        raise RuntimeError("as the test wants")
    body = json.dumps({"run": run, "size": size}).encode()
    headers = RICH if query.get("answer") == "rich" else []
    if query.get("answer") == "big":
        body = b"x" * (CAP + 1)
    status = int(query["answer"]) if query.get("answer", "").isdecimal() else 200
    return status, headers, body if status != 204 else b""


def step_of(fence: Any, request: Any, query: dict[str, str], headers: Any) -> str | None:
    """Return the step that the payment is, None where the test wants it to be none."""
    if "stepless" in query:
        return None
    return str(fence.step(request, "pay")) if headers.get("Idempotency-Key") else "pay"


def principal(request: Any) -> str:
    headers = {name.decode(): value.decode() for name, value in request.get("headers", ())}
    return headers.get("x-user") or request.get("HTTP_X_USER") or ""


def starlette_app() -> Any:
    engine = None
    if "dsn" in SETTINGS:
        engine = create_async_engine(SETTINGS["dsn"], pool_size=2, max_overflow=0)
        gate: Any = sinkfence_postgres.aio.PostgresSink(engine)
    else:
        gate = aio.HostGate(SETTINGS["folder"], drain_timeout=SETTINGS.get("drain_timeout", 10.0))
    fence = aio.Fence(gate, TrustedNetwork(), replay=gate.replay(max_body=CAP), principal=principal)

    async def effect(token: Token, step: str | None, run: int) -> int:
        if engine is None:
            return run

        async with engine.connect() as connection, sinkfence_postgres.aio.transaction(connection, token):

            async def pay() -> int:
                await connection.execute(sqlalchemy.text(PAY), {"job": token.job_id, "run": run})
                return run

            return await (
                pay() if step is None else sinkfence_postgres.aio.once(connection, token, step, pay)
            )

    async def pay(request: Any) -> Any:
        query = dict(request.query_params)
        job = f"account-{request.path_params['account']}"
        if query.get("answer") == "early":
            note(job)
            return Response(status_code=401)
        token = await fence.admit(request.scope, job)
        size = len(await request.body())
        run = note(f"{job} {token.generation} {os.getpid()}")
        if query.get("stall") == "before":
            await anyio.to_thread.run_sync(stall, abandon_on_cancel=True)
        if query.get("answer") == "fails":
            raise RuntimeError("as the test wants")
        step = step_of(fence, request.scope, query, request.headers)
        if query.get("answer") == "late":
            return Response(b"x", 503, background=BackgroundTask(effect, token, step, run))
        run = await effect(token, step, run)
        if query.get("stall") == "after":
            await anyio.to_thread.run_sync(stall, abandon_on_cancel=True)
        if query.get("answer") in ("stream", "breaks"):

            async def chunks() -> AsyncIterator[bytes]:
                for number in range(3):
                    yield b"data: %d %d\n\n" % (run, number)
                    if query["answer"] == "breaks":
                        raise RuntimeError("as the test wants")
                    if query.get("stall") == "within":
                        await anyio.to_thread.run_sync(stall, abandon_on_cancel=True)

            return StreamingResponse(chunks(), media_type="text/event-stream")
        status, headers, body = plan(query, run, size)
        response = Response(body, status, media_type="application/json")
        for name, value in headers:
            response.headers.append(name, value)
        if query.get("answer") == "short":
            response.headers["Content-Length"] = str(len(body) + 1)
        return response

    async def passes(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    paths = ["/accounts/{account:int}", "/other/{account:int}"]
    routes = [Route(path, pay, methods=["POST", "PUT"]) for path in paths]
    middleware = [Middleware(BaseHTTPMiddleware, dispatch=passes)] if SETTINGS.get("middleware") else []
    return asgi.FencingMiddleware(Starlette(routes=routes, middleware=middleware), fence)


def flask_app() -> Any:
    engine = None
    if "dsn" in SETTINGS:
        engine = sqlalchemy.create_engine(SETTINGS["dsn"], pool_size=2, max_overflow=0)
        gate: Any = sinkfence_postgres.PostgresSink(engine)
    else:
        gate = sinkfence_http.HostGate(SETTINGS["folder"], drain_timeout=SETTINGS.get("drain_timeout", 10.0))
    fence = sinkfence_http.Fence(
        gate, TrustedNetwork(), replay=gate.replay(max_body=CAP), principal=principal
    )
    app = flask.Flask(__name__)

    def effect(token: Token, step: str | None, run: int) -> int:
        if engine is None:
            return run
        with engine.connect() as connection, sinkfence_postgres.transaction(connection, token):

            def pay() -> int:
                connection.execute(sqlalchemy.text(PAY), {"job": token.job_id, "run": run})
                return run

            return pay() if step is None else sinkfence_postgres.once(connection, token, step, pay)

    @app.route("/accounts/<int:account>", methods=["POST", "PUT"])
    @app.route("/other/<int:account>", methods=["POST", "PUT"])
    def pay(account: int) -> Any:
        query, job = dict(flask.request.args), f"account-{account}"
        if query.get("answer") == "early":
            note(job)
            return "", 401
        token = fence.admit(flask.request.environ, job)
        size = len(flask.request.get_data())
        run = note(f"{job} {token.generation} {os.getpid()}")
        if query.get("stall") == "before":
            stall()
        if query.get("answer") == "fails":
            raise RuntimeError("as the test wants")
        step = step_of(fence, flask.request.environ, query, flask.request.headers)
        if query.get("answer") == "late":

            def answer_and_pay() -> Iterator[bytes]:
                yield b"x"
                effect(token, step, run)

            return flask.Response(answer_and_pay(), 503, {"Content-Length": "1"})
        run = effect(token, step, run)
        if query.get("stall") == "after":
            stall()
        if query.get("answer") in ("stream", "breaks"):

            def chunks() -> Iterator[bytes]:
                for number in range(3):
                    yield b"data: %d %d\n\n" % (run, number)
                    if query["answer"] == "breaks":
                        raise RuntimeError("as the test wants")

            return flask.Response(chunks(), mimetype="text/event-stream")
        status, headers, body = plan(query, run, size)
        response = flask.Response(body, status, mimetype="application/json")
        for name, value in headers:
            response.headers.add(name, value)
        if query.get("answer") == "short":
            response.headers["Content-Length"] = str(len(body) + 1)
        return response

    return wsgi.FencingMiddleware(app, fence)


def serve(framework: str, descriptor: int) -> None:
    if framework == "flask":
        make_server("127.0.0.1", 0, flask_app(), threaded=True, fd=descriptor).serve_forever()
    else:
        config = uvicorn.Config(starlette_app(), log_level="warning")
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def main(framework: str, descriptor: int) -> None:
    """Keep two workers on one socket, forked from here: one that is killed is replaced."""
    logging.basicConfig()
    for _ in range(2):
        work(framework, descriptor)
    while True:
        os.wait()
        work(framework, descriptor)


def work(framework: str, descriptor: int) -> None:
    if os.fork() == 0:
        if prctl is not None:
            prctl(1, signal.SIGKILL)  # end with the parent
        serve(framework, descriptor)
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
