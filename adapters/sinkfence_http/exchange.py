"""One fenced call by httpx or by httpx2, its maintained fork: both have the same names, and are passed in."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from sinkfence_http import wire
from sinkfence_http.calls import ARM_TIMEOUT, Call, Caller, check_armed

_ARMING: Final = "sinkfence_arming"  # an extension of a request that carries its own token, mounted or not


def passes(request: Any) -> bool:
    """Whether a transport sends this request as it is: a safe one, or one that arms."""
    return request.method in wire.SAFE or _ARMING in request.extensions


def send(httpx: Any, caller: Caller, request: Any, transmit: Callable[[Any], Any]) -> Any:
    """Send a write, as often as it takes, and return its response, whose body has been read."""
    call = _begin(httpx, caller, request)
    while True:
        attempt = _attempt(httpx, call, request)
        heard = False
        try:
            with closing(transmit(attempt)) as response:
                heard = True
                pause = call.answered(response.status_code, response.headers)
                if pause is None:
                    return _whole(httpx, response, b"".join(response.stream))
        except httpx.HTTPError as error:
            pause = _failed(httpx, call, request, error, heard)
        time.sleep(pause)


async def asend(httpx: Any, caller: Caller, request: Any, transmit: Callable[[Any], Awaitable[Any]]) -> Any:
    """As `send`, for an event loop of asyncio."""
    call = _begin(httpx, caller, request)
    while True:
        attempt = _attempt(httpx, call, request)
        heard = False
        try:
            async with aclosing(await transmit(attempt)) as response:
                heard = True
                pause = call.answered(response.status_code, response.headers)
                if pause is None:
                    return _whole(httpx, response, b"".join([part async for part in response.stream]))
        except httpx.HTTPError as error:
            pause = _failed(httpx, call, request, error, heard)
        await asyncio.sleep(pause)


def arm(httpx: Any, client: Any, base_url: str, caller: Caller) -> None:
    """Arm a service by a client's settings, and whatever is mounted there."""
    response = send(httpx, caller, _arming(client, base_url), _transmit(client))
    check_armed(response.status_code, response.headers)


async def aarm(httpx: Any, client: Any, base_url: str, caller: Caller) -> None:
    """As `arm`, for an event loop of asyncio."""
    response = await asend(httpx, caller, _arming(client, base_url), _transmit(client))
    check_armed(response.status_code, response.headers)


def _arming(client: Any, base_url: str) -> Any:
    url = base_url.rstrip("/") + wire.ARM_PATH
    return client.build_request("POST", url, timeout=ARM_TIMEOUT, extensions={_ARMING: True})


def _transmit(client: Any) -> Callable[[Any], Any]:
    return partial(client.send, stream=True, follow_redirects=False)


def _begin(httpx: Any, caller: Caller, request: Any) -> Call:
    try:
        _ = request.content
        rewindable = True
    except httpx.RequestNotRead:  # a file, a generator or a multipart form, which is sent once
        rewindable = False
    repeatable = _ARMING in request.extensions
    key = request.headers.get(wire.IDEMPOTENCY_KEY)
    return caller.begin(request.method, key, rewindable=rewindable, repeatable=repeatable)


def _attempt(httpx: Any, call: Call, request: Any) -> Any:
    # A copy: the caller's request carries no token, whatever becomes of it.
    headers = request.headers.copy()
    headers[wire.TOKEN] = call.attempt()
    names = ("connect", "read", "write", "pool")
    asked = request.extensions.get("timeout", {})
    timeout = {name: call.capped(asked.get(name)) for name in names}
    extensions = {**request.extensions, "timeout": timeout}
    return httpx.Request(
        request.method, request.url, headers=headers, stream=request.stream, extensions=extensions
    )


def _whole(httpx: Any, response: Any, raw: bytes) -> Any:
    # Read here and not by the client: a body that breaks off leaves the caller without its answer, and only
    # here can the call be repeated.
    def copy() -> Any:
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=httpx.ByteStream(raw),
            extensions=response.extensions,
        )

    copy().read()  # raises where it can't be decoded
    return copy()


def _failed(httpx: Any, call: Call, request: Any, error: Any, heard: bool) -> float:
    error.request = request  # the caller's, which carries no token
    # Not one byte of the request can have left where no connection came about.
    never = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    unsent = not heard and isinstance(error, never)
    hopeless = isinstance(error, httpx.UnsupportedProtocol) or (unsent and _unverified(error))
    return call.failed(error, sent=not (unsent or hopeless), hopeless=hopeless)


def _unverified(error: BaseException | None) -> bool:
    """Whether the service could not prove who it is: it will be no other the next time."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None
