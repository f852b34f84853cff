"""The caller's half for httpx2: a token on every write, and an acknowledgement from every service."""

from __future__ import annotations

try:
    import httpx2
except ImportError:
    raise ImportError("the transports for httpx2 need httpx2: pip install 'sinkfence[httpx2]'") from None

from sinkfence_http import transports


class FencedTransport(transports.Transport[httpx2.BaseTransport], httpx2.BaseTransport):
    """A transport for one bearer, to be mounted on the service's address: one Client per lease.

    The Client has `trust_env=False`: httpx2 mounts what NO_PROXY names, too, and that goes before.

    It does as `requests_adapter.FencedAdapter` does, and raises the same. `transport` is what it sends by,
    and closes: `httpx2.HTTPTransport()`, unless the service needs a certificate, a proxy or HTTP/2.

    The answer to a write is read whole before it is returned, also by `Client.stream`. A body that was not
    given as bytes, text, a form or JSON is sent once.
    """

    _library = httpx2


class AsyncFencedTransport(transports.AsyncTransport[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
    """As `FencedTransport`, for an AsyncClient on an event loop of asyncio."""

    _library = httpx2


class HttpSink(transports.Sink[httpx2.Client]):
    """A service that checks tokens, as something to arm: as `requests_adapter.HttpSink`, by a Client."""

    _library = httpx2


class AsyncHttpSink(transports.AsyncSink[httpx2.AsyncClient]):
    """As `HttpSink`, by an AsyncClient."""

    _library = httpx2
