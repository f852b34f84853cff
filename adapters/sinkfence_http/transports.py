"""The caller's half for httpx and for httpx2, its maintained fork: both have the same names.

A transport and a sink of either are made of the classes here: they name their library, and inherit from its
base class, too.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from typing import Any, Final, Generic, TypeVar

from sinkfence.sinks import Bearer
from sinkfence_http import wire
from sinkfence_http.arming import ARM_TIMEOUT, arm_url, check_armed
from sinkfence_http.calls import Call, Caller, Sign, carried, check_sign

T = TypeVar("T")

_ARMING: Final = "sinkfence_arming"  # an extension of a request that carries its own token, mounted or not


class Transport(Generic[T]):
    """A transport for one bearer."""

    _library: Any

    def __init__(self, bearer: Bearer, *, sign: Sign | None = None, transport: T | None = None) -> None:
        self._caller = Caller(bearer, sign)
        self._transport: Any = self._library.HTTPTransport() if transport is None else transport

    def handle_request(self, request: Any) -> Any:
        """Send one request, as often as it takes (`httpx.BaseTransport.handle_request`)."""
        transmit = self._transport.handle_request
        return (
            transmit(request) if _passes(request) else _send(self._library, self._caller, request, transmit)
        )

    def close(self) -> None:
        """Close the transport that it sends by."""
        self._transport.close()


class AsyncTransport(Generic[T]):
    """As `Transport`, on an event loop of asyncio."""

    _library: Any

    def __init__(self, bearer: Bearer, *, sign: Sign | None = None, transport: T | None = None) -> None:
        self._caller = Caller(bearer, sign)
        self._transport: Any = self._library.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: Any) -> Any:
        """As `Transport.handle_request`."""
        transmit = self._transport.handle_async_request
        if _passes(request):
            return await transmit(request)
        return await _asend(self._library, self._caller, request, transmit)

    async def aclose(self) -> None:
        """As `Transport.close`."""
        await self._transport.aclose()


class _Sink(Generic[T]):
    _library: Any
    durable: bool = True

    def __init__(self, client: T, base_url: str, *, sign: Sign | None = None) -> None:
        self._client: Any = client
        self._url = arm_url(base_url)
        self._sign = check_sign(sign)

    def _request(self) -> Any:
        return self._client.build_request("POST", self._url, timeout=ARM_TIMEOUT, extensions={_ARMING: True})

    def _transmit(self, request: Any) -> Any:
        return self._client.send(request, stream=True, follow_redirects=False)

    def _answered(self, request: Any, error: Exception) -> None:
        # By the client's hooks, which raise for what they like.
        answer = carried(error, self._library.Response, request)
        if answer is not None:
            check_armed(answer.status_code, answer.headers)


class Sink(_Sink[T]):
    """A service to be armed by a client's settings, and whatever is mounted there."""

    def arm(self, bearer: Bearer) -> None:
        """Raise the service's mark to the bearer's generation; raises as `requests_adapter.HttpSink.arm`."""
        request = self._request()
        try:
            answer = _send(self._library, Caller(bearer, self._sign), request, self._transmit)
        except Exception as error:
            self._answered(request, error)
            raise
        check_armed(answer.status_code, answer.headers)


class AsyncSink(_Sink[T]):
    """As `Sink`, by an async client."""

    async def arm(self, bearer: Bearer) -> None:
        """As `Sink.arm`."""
        request = self._request()
        try:
            answer = await _asend(self._library, Caller(bearer, self._sign), request, self._transmit)
        except Exception as error:
            self._answered(request, error)
            raise
        check_armed(answer.status_code, answer.headers)


def _passes(request: Any) -> bool:
    """Whether a transport sends this request as it is: a safe one, or one that arms."""
    return request.method in wire.SAFE or _ARMING in request.extensions


def _send(httpx: Any, caller: Caller, request: Any, transmit: Callable[[Any], Any]) -> Any:
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
        except Exception as error:  # noqa: BLE001  # raised again there, but for those of the library
            pause = _failed(httpx, call, request, error, heard)
        time.sleep(pause)


async def _asend(httpx: Any, caller: Caller, request: Any, transmit: Callable[[Any], Awaitable[Any]]) -> Any:
    """As `_send`, for an event loop of asyncio."""
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
        except Exception as error:  # noqa: BLE001  # raised again there, but for those of the library
            pause = _failed(httpx, call, request, error, heard)
        await asyncio.sleep(pause)


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
    timeouts = request.extensions.get("timeout", {})
    capped = {name: call.capped(timeouts.get(name)) for name in names}
    extensions = {**request.extensions, "timeout": capped}
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
    answer = None if heard else carried(error, httpx.Response, request)
    of_httpx = isinstance(error, httpx.HTTPError)
    if of_httpx:
        error.request = request  # the caller's, which carries no token
    if answer is not None:
        answer.request = request
        pause = call.answered(answer.status_code, answer.headers)
        if pause is not None:
            return pause
    if answer is not None or not of_httpx:
        raise error
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
