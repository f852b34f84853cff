"""A WSGI application that reads its body to the end, by hypercorn: python echo_service.py NAME FD FOLDER."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from sinkfence_http import Fence, HostGate, TrustedNetwork, wsgi

gate = HostGate(sys.argv[3])
fence = Fence(gate, TrustedNetwork(), replay=gate.replay(), principal=lambda environ: "ann")


def echo(environ: Any, start_response: Any) -> list[bytes]:
    fence.admit(environ, "invoice-42")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["wsgi.input"].read()]


config = Config()
config.bind = [f"fd://{sys.argv[2]}"]
app: Any = wsgi.FencingMiddleware(echo, fence)
asyncio.run(serve(app, config, mode="wsgi"))
