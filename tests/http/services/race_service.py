"""One handler behind each kind of gate: python race_service.py SERVER FD SETTINGS becomes that server.

A server's worker imports this module for `app`; its settings come by the environment.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.util import shift_path_info

import psycopg

import sinkfence_http
import sinkfence_postgres
import sinkfence_postgres.aio
from sinkfence import Token
from sinkfence_http import TrustedNetwork, aio, asgi, wsgi

SERVERS = {
    "uvicorn": ["uvicorn", "race_service:app", "--fd={}", "--log-level=warning"],
    "uvicorn-2": ["uvicorn", "race_service:app", "--fd={}", "--log-level=warning", "--workers=2"],
    "hypercorn": ["hypercorn", "race_service:app", "--bind=fd://{}", "--workers=1"],
    "gunicorn": ["gunicorn", "race_service:app", "--bind=fd://{}", "--workers=2", "--threads=4"],
}

# One statement that waits and then writes: a database goes on with it when its client has died.
PAY = (
    "insert into payment (place, account, generation) select %(place)s, %(account)s, %(generation)s"
    " from pg_advisory_xact_lock_shared(%(lock)s, %(account)s)"
)
READING = "select pg_advisory_lock_shared(2, %(account)s)"


def row_of(path: str, query: str, token: Token) -> dict[str, Any]:
    """Return what is written; `lock` is 1, which the test may hold, for a request that is to stall."""
    place, account = path.strip("/").split("/")
    stall = query == "stall"
    return {"place": place, "account": int(account), "generation": token.generation, "lock": int(stall)}


def connect(kind: Any) -> Any:
    """Connect under the worker's own name, by which the test finds out whom to kill."""
    return kind.connect(SETTINGS["dsn"], autocommit=True, application_name=f"worker {os.getpid()}")


def job_of(path: str) -> str:
    return f"account-{int(path.rsplit('/', 1)[1])}"


class AsgiApp:
    """By path: /postgres guards its write, the others leave that to the gate, /tasks answers before it."""

    def __init__(self, gates: dict[str, Any]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._doors = {}
        for place, gate in gates.items():
            fence = aio.Fence(gate, TrustedNetwork())
            self._doors[place] = asgi.FencingMiddleware(self._handler(fence), fence)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            place = scope["path"].split("/")[1]
            await self._doors[place](scope | {"root_path": f"/{place}"}, receive, send)
        else:
            assert scope["type"] == "lifespan"
            while True:
                word = (await receive())["type"]
                await send({"type": f"{word}.complete"})
                if word.endswith("shutdown"):
                    return

    def _handler(self, fence: aio.Fence) -> Any:
        async def handle(scope: Any, receive: Any, send: Any) -> None:
            token = await fence.admit(scope, job_of(scope["path"]))
            row = row_of(scope["path"], scope["query_string"].decode(), token)
            if row["place"] == "tasks":
                task = asyncio.create_task(self._write(token, row))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not scope["query_string"].startswith(b"body") or await self._read(receive, row):
                await self._write(token, row)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"paid"})

        return handle

    async def _read(self, receive: Any, row: dict[str, Any]) -> bool:
        """Read the body, and say in the database that this is under way; False: it has ended early."""
        async with await connect(psycopg.AsyncConnection) as connection:
            await connection.execute(READING, row)
            while (message := await receive())["type"] == "http.request":
                if not message.get("more_body", False):
                    return True
        return False

    async def _write(self, token: Token, row: dict[str, Any]) -> None:
        async with await connect(psycopg.AsyncConnection) as connection:
            if row["place"] == "postgres":
                async with sinkfence_postgres.aio.transaction(connection, token):
                    await connection.execute(PAY, row)
            else:
                await connection.execute(PAY, row)


class WsgiApp:
    """The same in threads."""

    def __init__(self, gates: dict[str, Any]) -> None:
        self._doors = {}
        for place, gate in gates.items():
            fence = sinkfence_http.Fence(gate, TrustedNetwork())
            self._doors[place] = wsgi.FencingMiddleware(self._handler(fence), fence)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return self._doors[shift_path_info(environ)](environ, start_response)

    def _handler(self, fence: sinkfence_http.Fence) -> Any:
        def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            path = environ["SCRIPT_NAME"] + environ["PATH_INFO"]
            token = fence.admit(environ, job_of(path))
            row = row_of(path, environ.get("QUERY_STRING", ""), token)
            if row["place"] == "tasks":
                threading.Thread(target=self._write, args=(token, row), daemon=True).start()
            elif not environ["QUERY_STRING"].startswith("body") or self._read(environ, row):
                self._write(token, row)
            start_response("200 OK", [])
            return [b"paid"]

        return handle

    def _read(self, environ: dict[str, Any], row: dict[str, Any]) -> bool:
        with connect(psycopg.Connection) as connection:
            connection.execute(READING, row)
            length = int(environ["CONTENT_LENGTH"])
            return len(environ["wsgi.input"].read(length)) == length

    def _write(self, token: Token, row: dict[str, Any]) -> None:
        with connect(psycopg.Connection) as connection:
            if row["place"] == "postgres":
                with sinkfence_postgres.transaction(connection, token):
                    connection.execute(PAY, row)
            else:
                connection.execute(PAY, row)


def gates(package: Any, postgres: Any) -> dict[str, Any]:
    host = SETTINGS["folder"] + "/host"
    return {
        "postgres": postgres.PostgresSink(SETTINGS["dsn"]),
        "host": package.HostGate(host, drain_timeout=30),
        "impatient": package.HostGate(host + "-impatient", drain_timeout=0),
        "tasks": package.HostGate(host + "-tasks", drain_timeout=30),
        "door": package.DoorOnly(),
    }


if __name__ == "__main__":
    name, descriptor, settings = sys.argv[1:]
    os.chdir(os.path.dirname(__file__))
    command = [word.format(descriptor) for word in SERVERS[name]]
    environment = os.environ | {"RACE_SERVER": name, "RACE_SETTINGS": settings}
    path = f"{os.getcwd()}{os.pathsep}{os.environ['PYTHONPATH']}"
    os.execvpe(sys.executable, [sys.executable, "-m", *command], environment | {"PYTHONPATH": path})

if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
    prctl(1, signal.SIGKILL)  # a worker ends with the server that has started it
SETTINGS: dict[str, Any] = json.loads(os.environ["RACE_SETTINGS"])
if os.environ["RACE_SERVER"] == "gunicorn":
    app: Any = WsgiApp(gates(sinkfence_http, sinkfence_postgres))
else:
    app = AsgiApp(gates(aio, sinkfence_postgres.aio))
