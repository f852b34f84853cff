"""The caller's half for httpx2: a token on every write, and an acknowledgement from every service."""

from __future__ import annotations

try:
    import httpx2
except ImportError:
    raise ImportError("the transports for httpx2 need httpx2: pip install 'sinkfence[httpx2]'") from None

from sinkfence.sinks import Bearer
from sinkfence_http import exchange
from sinkfence_http.calls import Caller, Sign


class FencedTransport(httpx2.BaseTransport):
    """A transport for one bearer, to be mounted on the service's address: one Client per lease.

    It does as `requests_adapter.FencedAdapter` does, and raises the same. `transport` is what it sends by,
    and closes: `httpx2.HTTPTransport()`, unless the service needs a certificate, a proxy or HTTP/2.

    The answer to a write is read whole before it is returned, also by `Client.stream`. A body that was not
    given as bytes, text, a form or JSON is sent once.
    """

    def __init__(
        self, bearer: Bearer, *, sign: Sign | None = None, transport: httpx2.BaseTransport | None = None
    ) -> None:
        self._caller = Caller(bearer, sign)
        self._transport = httpx2.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, as often as it takes (`httpx2.BaseTransport.handle_request`)."""
        transmit = self._transport.handle_request
        if exchange.passes(request):
            return transmit(request)
        response: httpx2.Response = exchange.send(httpx2, self._caller, request, transmit)
        return response

    def close(self) -> None:
        """Close the transport that it sends by."""
        self._transport.close()


class AsyncFencedTransport(httpx2.AsyncBaseTransport):
    """As `FencedTransport`, for an AsyncClient on an event loop of asyncio."""

    def __init__(
        self, bearer: Bearer, *, sign: Sign | None = None, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._caller = Caller(bearer, sign)
        self._transport = httpx2.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As `FencedTransport.handle_request`."""
        transmit = self._transport.handle_async_request
        if exchange.passes(request):
            return await transmit(request)
        response: httpx2.Response = await exchange.asend(httpx2, self._caller, request, transmit)
        return response

    async def aclose(self) -> None:
        """As `FencedTransport.close`."""
        await self._transport.aclose()


class HttpSink:
    """A service that checks tokens, as something to arm: as `requests_adapter.HttpSink`, by a Client."""

    durable: bool = True

    def __init__(self, client: httpx2.Client, base_url: str, *, sign: Sign | None = None) -> None:
        self._client = client
        self._url = base_url
        self._sign = sign

    def arm(self, bearer: Bearer) -> None:
        """Raise the service's mark to the bearer's generation; raises as `requests_adapter.HttpSink.arm`."""
        exchange.arm(httpx2, self._client, self._url, Caller(bearer, self._sign))


class AsyncHttpSink:
    """As `HttpSink`, by an AsyncClient."""

    durable: bool = True

    def __init__(self, client: httpx2.AsyncClient, base_url: str, *, sign: Sign | None = None) -> None:
        self._client = client
        self._url = base_url
        self._sign = sign

    async def arm(self, bearer: Bearer) -> None:
        """As `HttpSink.arm`."""
        await exchange.aarm(httpx2, self._client, self._url, Caller(bearer, self._sign))
