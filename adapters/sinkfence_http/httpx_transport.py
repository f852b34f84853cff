"""The caller's half for httpx: a token on every write, and an acknowledgement from every service."""

from __future__ import annotations

try:
    import httpx
except ImportError:
    raise ImportError("the transports for httpx need httpx: pip install 'sinkfence[httpx]'") from None

from sinkfence_http import transports


class FencedTransport(transports.Transport[httpx.BaseTransport], httpx.BaseTransport):
    """A transport for one bearer, to be mounted on the service's address: one Client per lease.

    The Client has `trust_env=False`: httpx mounts what NO_PROXY names, too, and that goes before.

    It does as `requests_adapter.FencedAdapter` does, and raises the same. `transport` is what it sends by,
    and closes: `httpx.HTTPTransport()`, unless the service needs a certificate, a proxy or HTTP/2.

    The answer to a write is read whole before it is returned, also by `Client.stream`. A body that was not
    given as bytes, text, a form or JSON is sent once.
    """

    _library = httpx


class AsyncFencedTransport(transports.AsyncTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """As `FencedTransport`, for an AsyncClient on an event loop of asyncio."""

    _library = httpx


class HttpSink(transports.Sink[httpx.Client]):
    """A service that checks tokens, as something to arm: as `requests_adapter.HttpSink`, by a Client."""

    _library = httpx


class AsyncHttpSink(transports.AsyncSink[httpx.AsyncClient]):
    """As `HttpSink`, by an AsyncClient."""

    _library = httpx
