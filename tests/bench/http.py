"""What the door costs a service in CPU time: called directly, under uvicorn, and before Flask."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from werkzeug.test import create_environ

from bench.http_ways import PACKAGES, asgi_ways, fresh_key, plain, signed, wsgi_ways
from bench.race import Figure, Race, Turn, absent, at_most, burned

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def bench(small: bool) -> Iterator[Race | Figure | str]:
    """The goals of the design: 3 us at most, 2 % of uvicorn's, 10 % of Flask's."""
    times = 2 if small else 400
    yield f"uvicorn {uvicorn.__version__}; each request has a token that was seen before, and a new key"
    if missing := absent(*PACKAGES.values()):
        yield f"not run: no {', '.join(missing)} (extra `bench`)"
    secret = secrets.token_hex(32)
    value, verifier = signed(secret)
    with tempfile.TemporaryDirectory() as folder:
        ways = asgi_ways(plain, verifier, f"{folder}/direct")
        turns = {name: direct(app, value, times) for name, app in ways.items()}
        yield Race("an ASGI application that does nothing, called", "us of CPU a request", turns, "bare")
        added = difference(turns["fenced"], turns["bare"], 1 if small else 31)
        yield Figure("what the door adds to a call, a cached token", added, "us of CPU", at_most(3))
        with service(secret, f"{folder}/served") as port:
            turns = {name: served(port, name, value, times) for name in ways}
            goals = {"fenced": at_most(1.02)}
            yield Race("FastAPI under uvicorn", "us of CPU a request", turns, "bare", goals, rounds=31)
        calls = {
            name: called(app, value, times // 2)
            for name, app in wsgi_ways(verifier, f"{folder}/wsgi").items()
        }
        goals = {"fenced": at_most(1.10)}
        yield Race("Flask, called", "us of CPU a request", calls, "bare Flask", goals, rounds=31)


def difference(one: Turn, other: Turn, rounds: int) -> float:
    """Return the median of what one turn costs more than the other next to it."""
    return statistics.median(one() - other() for _ in range(rounds))


def direct(app: Any, value: str, times: int) -> Turn:
    """Make a turn: calls of an ASGI application, one after the other, on a loop that runs already."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200

    async def work() -> float:
        scopes = [scope(value) for _ in range(times)]
        before = time.process_time()
        for each in scopes:
            await app(each, receive, send)
        return (time.process_time() - before) / times * 1e6

    return lambda: asyncio.run(work())


def scope(value: str) -> dict[str, Any]:
    """What a server makes of a request."""
    headers = [(b"host", b"bench"), (b"user-agent", b"bench"), (b"accept", b"*/*"), (b"content-length", b"0")]
    return {
        "type": "http",
        "method": "POST",
        "path": "/bare/accounts/42",
        "query_string": b"",
        "headers": [*headers, (b"fencing-token", value.encode()), (b"idempotency-key", fresh_key())],
    }


def called(app: Any, value: str, times: int) -> Turn:
    """Make a turn: calls of a WSGI application."""
    base = create_environ("/accounts/42", method="POST", headers={"Fencing-Token": value})

    def work() -> None:
        for _ in range(times):
            environ = base | {"wsgi.input": io.BytesIO(), "HTTP_IDEMPOTENCY_KEY": fresh_key().decode()}
            answer = app(environ, check)
            b"".join(answer)
            if hasattr(answer, "close"):
                answer.close()

    return burned(work, times=times, unit=1e-6)


def check(status: str, headers: object, exc_info: object = None) -> Callable[[bytes], object]:
    assert status.startswith("200")
    return lambda data: None


@contextmanager
def service(secret: str, folder: str) -> Generator[int]:
    """The port of all contestants under one uvicorn, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, str(HERE / "http_service.py"), str(listener.fileno()), secret, folder]
        paths = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'adapters'}{os.pathsep}{ROOT / 'trials'}"
        environment = os.environ | {"PYTHONPATH": paths}
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment)
        port = listener.getsockname()[1]
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def served(port: int, name: str, value: str, times: int) -> Turn:
    """Make a turn: requests over one connection, and what the server says that it has burned for them."""
    path = name.replace(" ", "-").replace(",", "")
    head = f"POST /{path}/accounts/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nFencing-Token: {value}\r\n"

    def turn() -> float:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            before = float(ask(connection, b"GET /cpu HTTP/1.1\r\nHost: a\r\n\r\n"))
            for _ in range(times):
                ask(connection, head.encode() + b"Idempotency-Key: " + fresh_key() + b"\r\n\r\n")
            return (float(ask(connection, b"GET /cpu HTTP/1.1\r\nHost: a\r\n\r\n")) - before) / times * 1e6

    return turn


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request, and read its answer's body."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise AssertionError(data)
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += received(connection)
    return body


def received(connection: socket.socket) -> bytes:
    if not (data := connection.recv(65536)):
        raise ConnectionError("the server has closed the connection")
    return data
