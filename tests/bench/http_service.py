"""All contestants under one uvicorn; /cpu says what was burned: python http_service.py FD SECRET FOLDER."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

sys.path[0] += "/.."  # not this folder, where `http` is another's name

import uvicorn

from bench.http_ways import asgi_ways, fastapi, signed

descriptor, secret, folder = sys.argv[1:]
WAYS = asgi_ways(fastapi, signed(secret)[1], folder)
PATHS = {name.replace(" ", "-").replace(",", ""): app for name, app in WAYS.items()}


async def app(scope: Any, receive: Any, send: Any) -> None:
    way = scope["path"].split("/")[1]
    if way != "cpu":
        await PATHS[way](scope, receive, send)
        return
    body = repr(time.process_time()).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


config = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False)
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])
