"""The contestants of the HTTP benchmark: one application, bare, behind the door and other middleware."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import flask
from fastapi import FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware

import sinkfence_http
from bench.race import absent
from sinkfence.tokens import Token
from sinkfence_http import SignedTokens, TokenSigner, VerificationKey, aio, asgi, wsgi

JOB = "account-42"
PACKAGES = {
    "idemkit": "idemkit",
    "fastapi-idempotency-key": "fastapi_idempotency_key",
    "asgi-idempotency-header": "idempotency_header_middleware",
}
# Its store in memory looks through all that it holds at each request: it is given little to hold.
SINGLE: dict[str, Any] = {"scope_mode": "single_tenant", "expires_after_seconds": 0.05}


def signed(secret: str) -> tuple[str, SignedTokens]:
    """Return the header of one token, and who verifies it."""
    sign = TokenSigner(secret, kid="k1", alg="HS256", issuer="workers", audience="bench")
    key = VerificationKey(key=secret, alg="HS256", issuer="workers")
    return sign(Token(JOB, 7, "bench:0f3a")), SignedTokens({"k1": key}, "bench")


def plain(fence: aio.Fence | None) -> Any:
    """An ASGI application with nothing in it: what is measured is the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if fence is not None:
            await fence.admit(scope, JOB)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    return app


def fastapi(fence: aio.Fence | None) -> Any:
    """The same as a route of FastAPI."""
    app = FastAPI()

    @app.post("/{way}/accounts/{account}")
    async def pay(request: Request, account: int) -> dict[str, int]:
        if fence is not None:
            await fence.admit(request.scope, f"account-{account}")
        return {"paid": account}

    return app


def asgi_ways(make: Callable[[aio.Fence | None], Any], verifier: SignedTokens, folder: str) -> dict[str, Any]:
    """The application under each middleware; `fenced` is the door's own cost."""
    ways: dict[str, Any] = {"bare": make(None)}
    for name, gate in (("fenced", aio.DoorOnly()), ("fenced, HostGate", aio.HostGate(folder))):
        fence = aio.Fence(gate, verifier)
        ways[name] = asgi.FencingMiddleware(make(fence), fence)

    async def nothing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    ways["an empty BaseHTTPMiddleware"] = BaseHTTPMiddleware(make(None), nothing)
    if not absent("idemkit"):
        import idemkit

        backend, config = (
            idemkit.InMemoryBackend(max_size=10**7),
            idemkit.HttpConfig(**SINGLE),
        )
        ways["idemkit"] = idemkit.IdempotencyMiddleware(make(None), backend=backend, config=config)
    if not absent("fastapi_idempotency_key"):
        import fastapi_idempotency_key as keyed

        ways["fastapi-idempotency-key"] = keyed.IdempotencyMiddleware(make(None), keyed.MemoryBackend())
    if not absent("idempotency_header_middleware"):
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends.memory import MemoryBackend

        ways["asgi-idempotency-header"] = IdempotencyHeaderMiddleware(make(None), MemoryBackend())
    return ways


def wsgi_ways(verifier: SignedTokens, folder: str) -> dict[str, Any]:
    """A route of Flask under each middleware."""

    def make(fence: sinkfence_http.Fence | None) -> Any:
        app = flask.Flask("bench")

        @app.post("/accounts/<int:account>")
        def pay(account: int) -> dict[str, int]:
            if fence is not None:
                fence.admit(flask.request.environ, f"account-{account}")
            return {"paid": account}

        return app

    ways: dict[str, Any] = {"bare Flask": make(None)}
    doors = (("fenced", sinkfence_http.DoorOnly()), ("fenced, HostGate", sinkfence_http.HostGate(folder)))
    for name, gate in doors:
        fence = sinkfence_http.Fence(gate, verifier)
        ways[name] = wsgi.FencingMiddleware(make(fence), fence)
    if not absent("idemkit"):
        from idemkit import HttpConfig, InMemoryBackend
        from idemkit.adapters.wsgi import WSGIIdempotencyMiddleware

        backend, config = InMemoryBackend(max_size=10**7), HttpConfig(**SINGLE)
        ways["idemkit"] = WSGIIdempotencyMiddleware(make(None), backend=backend, config=config)
    return ways


def fresh_key() -> bytes:
    """A key that no request has had: the others do their work for new keys only."""
    return secrets.token_hex(16).encode()
