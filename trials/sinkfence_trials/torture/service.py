"""The HTTP service of a run: it appends to a log, and its own host is the gate before it.

Its log is what it has done, and nothing else says so: each line is the effect itself. Whatever it answers to
a write it tells its parent as well: whoever sent it may have gone.
"""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sinkfence_http import TrustedNetwork, wire
from sinkfence_http.aio import Fence, HostGate
from sinkfence_http.asgi import FencingMiddleware
from sinkfence_trials.demo import child
from sinkfence_trials.history import Event, History, now, read
from sinkfence_trials.torture.caller import ATTEMPT


class Log:
    """Effects, in the order in which they are applied."""

    def __init__(self, path: Path) -> None:
        self._history = History(path, "service")
        self._lock = threading.Lock()
        self._ids: dict[str, list[str]] = {}
        self._keys: dict[str | None, str] = {}
        for event in read([path]):
            self._keep(event)

    def of(self, job: str) -> list[str]:
        """What was applied to a job."""
        return self._ids.get(job, [])

    def by(self, key: str) -> str | None:
        """Which attempt applied a step."""
        return self._keys.get(key)

    def append(self, job: str, generation: int, key: str, **value: str | None) -> None:
        """Apply one effect."""
        with self._lock:
            event = Event(now(), "service", "effect", "ok", job, generation, key, {"sink": "http", **value})
            self._history.write(event)
            self._keep(event)

    def _keep(self, event: Event) -> None:
        self._ids.setdefault(event.job, []).append(event.value["id"])
        self._keys[event.key] = event.value["id"]


def application(folder: Path, *, fenced: bool) -> Starlette:
    """Return the service, with its fence, or as most are; `folder` keeps its log and its marks."""
    gate = HostGate(folder / "marks")
    fence = Fence(gate, TrustedNetwork(), replay=gate.replay(), principal=lambda _: "workers")
    log = Log(folder / "service.jsonl")

    async def post(request: Request) -> JSONResponse:
        job = request.path_params["job"]
        token = (
            await fence.admit(request.scope, job) if fenced else wire.parse_token(request.headers[wire.TOKEN])
        )
        await request.body()  # what is held on its way, the whole or a part of it, has no effect
        said, key = json.loads(request.headers[ATTEMPT]), request.headers["idempotency-key"]
        # Killed between effect and answer, it comes again, from a newer owner, whom the door lets in.
        if (by := log.by(key)) is not None:
            return JSONResponse({"applied": by})
        log.append(job, token.generation, key, owner=token.owner, **said)
        return JSONResponse({"applied": said["id"]})

    async def get(request: Request) -> JSONResponse:
        ids = log.of(request.path_params["job"])
        return JSONResponse({"last": ids[-1] if ids else None, "count": len(ids)})

    routes = [Route("/{job:path}", post, methods=["POST"]), Route("/{job:path}", get, methods=["GET"])]
    doors = [Middleware(FencingMiddleware, fence=fence)] if fenced else []
    return Starlette(routes=routes, middleware=[Middleware(Telling), *doors])


class Telling:
    """Tells of each answer to a write."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def tell_and_send(message: Message) -> None:
            writes = scope["method"] == "POST" and scope["path"] != wire.ARM_PATH
            if message["type"] == "http.response.start" and writes:
                child.tell("answered", status=message["status"])
            await send(message)

        await self._app(scope, receive, tell_and_send if scope["type"] == "http" else send)


def main() -> None:
    """Serve on the port of 127.0.0.1 that the brief names."""
    brief = child.enter()
    app = application(Path(brief["folder"]), fenced=brief["fenced"])
    # A connection whose request is held on its way must be there when it arrives.
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_keep_alive=600))
    with socket.create_server(("127.0.0.1", brief["port"])) as listener:
        child.tell("listens")
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
