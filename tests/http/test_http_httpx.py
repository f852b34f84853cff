"""The caller's half for httpx and httpx2: what is their own."""

from __future__ import annotations

import asyncio
import gzip
import io
import ssl
from pathlib import Path

import httpx
import httpx2
import pytest

from sinkfence import NotEnforced, OutcomeUnknown, StaleToken, Token
from sinkfence_http import httpx2_transport, httpx_transport

TOKEN = Token("invoice-42", 8, "b:1")
KEY = {"Idempotency-Key": TOKEN.key("mail 2026-05-01")}
OK = b"HTTP/1.1 200 X\r\nContent-Length: 5\r\nConnection: close\r\nFencing-Status: accepted\r\n\r\nhello"
ARMED = b"HTTP/1.1 204 X\r\nConnection: close\r\nFencing-Status: armed\r\n\r\n"
STALE = b"HTTP/1.1 412 X\r\nContent-Length: 0\r\nConnection: close\r\nFencing-Status: stale-token\r\n\r\n"
BUSY = (
    b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\nFencing-Status: fence-unavailable\r\n\r\n"
)
UNKNOWN = b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
CONTEXT = ssl.create_default_context()  # it takes long to make
LIBRARIES = [(httpx, httpx_transport), (httpx2, httpx2_transport)]


def test_the_two_modules_are_one_text():
    """What is true of one is true of the other."""
    one, two = (Path(module.__file__).read_text() for module in (httpx_transport, httpx2_transport))
    assert one.replace("httpx", "httpx2") == two


@pytest.mark.parametrize(("library", "half"), LIBRARIES)
def test_sync(library, half, scripted):
    """Armed, written to, refused: by a Client, and by transports that are made here."""
    server = scripted(ARMED, OK, STALE)
    with library.Client(mounts={server.url: half.FencedTransport(TOKEN)}, trust_env=False) as client:
        sink = half.HttpSink(client, server.url)
        assert sink.durable is True
        sink.arm(TOKEN)
        assert client.post(server.url).text == "hello"
        with pytest.raises(StaleToken):
            client.post(server.url)
    assert isinstance(half.FencedTransport(TOKEN), library.BaseTransport)


@pytest.mark.parametrize(("library", "half"), LIBRARIES)
def test_async(library, half, scripted):
    """The same by an AsyncClient."""

    async def run(server):
        mounts = {server.url: half.AsyncFencedTransport(TOKEN)}
        async with library.AsyncClient(mounts=mounts, trust_env=False) as client:
            sink = half.AsyncHttpSink(client, server.url)
            assert sink.durable is True
            await sink.arm(TOKEN)
            assert (await client.post(server.url)).text == "hello"
            with pytest.raises(StaleToken):
                await client.post(server.url)

    asyncio.run(run(scripted(ARMED, OK, STALE)))
    assert isinstance(half.AsyncFencedTransport(TOKEN), library.AsyncBaseTransport)


@pytest.mark.parametrize(("library", "half"), LIBRARIES)
def test_a_host_in_no_proxy_is_not_past_its_mount(library, half, scripted, monkeypatch):
    """For a client of the kind that is documented; another has a mount of the library's own before it."""
    server = scripted(OK)
    monkeypatch.setenv("NO_PROXY", "orders.example")
    mounted = half.FencedTransport(TOKEN, transport=library.HTTPTransport(proxy=server.url))
    with library.Client(mounts={"http://orders.example": mounted}, trust_env=False) as client:
        assert client.post("http://orders.example/accounts/17").text == "hello"
    assert server.header(0, "Fencing-Token") == '"invoice-42";g=8;o="b:1"'


def client_of(server, **how):
    mounts = {server.url: httpx_transport.FencedTransport(TOKEN)}
    return httpx.Client(mounts=mounts, trust_env=False, **how)


@pytest.mark.parametrize(
    "body",
    [
        {"content": b"payload"},
        {"content": "payload"},
        {"json": "payload"},
        {"data": {"a": "payload"}},
        {"content": io.BytesIO(b"payload")},
        {"content": iter([b"payload"])},
        {"files": {"a": b"payload"}},
    ],
    ids=["bytes", "text", "json", "form", "file", "generator", "multipart"],
)
def test_a_body_in_memory_is_sent_again_and_no_other(scripted, body):
    """A file may stand at its end, a generator be spent: without an answer that is unknown, key or not."""
    server = scripted(None, OK)
    with client_of(server) as client:
        if "files" in body or not isinstance(body.get("content", ""), (bytes, str)):
            with pytest.raises(OutcomeUnknown):
                client.post(server.url, headers=KEY, **body)
            assert len(server.requests) == 1
        else:
            assert client.post(server.url, headers=KEY, **body).text == "hello"
            assert server.body(0) == server.body(1)
            assert b"payload" in server.body(1)


def test_an_interim_answer_is_passed_over(scripted):
    """After a 103 comes the answer itself."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    server = scripted(hints + OK)
    with client_of(server) as client:
        assert client.post(server.url).text == "hello"


def test_an_answer_that_is_streamed_has_been_read(scripted):
    """Raw and decoded, its bytes are the service's own."""
    raw = gzip.compress(b"hello")
    head = (
        b"HTTP/1.1 200 X\r\nContent-Length: %d\r\nConnection: close\r\n"
        b"Fencing-Status: accepted\r\nContent-Encoding: gzip\r\n\r\n"
    )
    server = scripted(head % len(raw) + raw, head % len(raw) + raw)
    with client_of(server) as client:
        with client.stream("POST", server.url) as response:
            assert b"".join(response.iter_raw()) == raw
        with client.stream("POST", server.url) as response:
            assert b"".join(response.iter_bytes()) == b"hello"


def test_an_address_of_no_kind_that_is_spoken_is_the_caller_s_error():
    """It was sent nothing, and isn't tried again."""
    with httpx.Client(transport=httpx_transport.FencedTransport(TOKEN)) as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            client.post("gopher://127.0.0.1/")


def test_a_call_that_is_cancelled_ends(scripted):
    """Its task is not kept, and nothing is sent again."""

    async def run(server):
        mounts = {server.url: httpx_transport.AsyncFencedTransport(TOKEN)}
        async with httpx.AsyncClient(mounts=mounts, trust_env=False, timeout=None) as client:
            call = asyncio.create_task(client.post(server.url, headers=KEY))
            while not server.requests:
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    server = scripted(b"never", OK)
    asyncio.run(run(server))
    assert len(server.requests) == 1


def test_an_error_of_arming_carries_no_token(scripted):
    """What is raised, and then logged, leads to a request without it."""
    server = scripted(None, None, None, None, None, None)
    with httpx.Client(trust_env=False) as client, pytest.raises(OutcomeUnknown) as unknown:
        httpx_transport.HttpSink(client, server.url).arm(TOKEN)
    assert "Fencing-Token" not in unknown.value.__cause__.request.headers


class Bearer:
    """A bearer that notes what it is told."""

    token = TOKEN
    lost: StaleToken | None = None

    def lose(self, reason):
        self.lost = reason


class Trouble(Exception):
    """An error of an application's own."""

    def __init__(self, response):
        super().__init__(response.status_code)
        self.response = response


def for_status(response):
    response.raise_for_status()


def of_its_own(response):
    if response.is_error:
        raise Trouble(response)


def arm(library, half, server, hook, bearer, *, loop):
    """Arm by a client with a hook, on a loop or without one."""

    settings = {"verify": CONTEXT, "trust_env": False}

    async def hooked(response):
        hook(response)

    async def run():
        async with library.AsyncClient(event_hooks={"response": [hooked]}, **settings) as client:
            await half.AsyncHttpSink(client, server.url).arm(bearer)

    if loop:
        asyncio.run(run())
    else:
        with library.Client(event_hooks={"response": [hook]}, **settings) as client:
            half.HttpSink(client, server.url).arm(bearer)


@pytest.mark.parametrize("loop", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("hook", [for_status, of_its_own])
@pytest.mark.parametrize(("library", "half"), LIBRARIES)
def test_a_hook_that_raises_for_a_status_hides_no_answer(library, half, hook, loop, scripted):
    """What the service has said counts: stale is told to the bearer at once, a busy door is asked again, and
    what armed nothing is no unknown outcome."""
    server, bearer = scripted(STALE), Bearer()
    with pytest.raises(StaleToken) as stale:
        arm(library, half, server, hook, bearer, loop=loop)
    assert bearer.lost is stale.value
    assert not stale.value.earlier_attempt_unknown
    assert len(server.requests) == 1
    assert "Fencing-Token" not in stale.value.__context__.response.request.headers
    server = scripted(BUSY, ARMED)
    arm(library, half, server, hook, bearer, loop=loop)
    assert len(server.requests) == 2
    with pytest.raises(NotEnforced):
        arm(library, half, scripted(UNKNOWN), hook, bearer, loop=loop)


@pytest.mark.parametrize(("library", "half"), LIBRARIES)
def test_the_answer_of_another_service_is_not_taken_for_one(library, half, scripted, monkeypatch):
    """A hook that asks elsewhere, and fails there: the answer's error is not this service's word."""
    monkeypatch.setattr("sinkfence_http.calls.FIRST_PAUSE", 0.01)
    elsewhere, server, bearer = scripted(STALE), scripted(*[ARMED] * 6), Bearer()

    def log_in(_):
        if not elsewhere.requests:
            library.get(elsewhere.url, trust_env=False).raise_for_status()

    arm(library, half, server, log_in, bearer, loop=False)
    assert (len(server.requests), bearer.lost) == (2, None)


class Raising(httpx.BaseTransport):
    """A transport that raises for a status."""

    def __init__(self):
        self._by = httpx.HTTPTransport()

    def handle_request(self, request):
        response = self._by.handle_request(request)
        response.request = request
        return response.raise_for_status()

    def close(self):
        self._by.close()


def test_a_transport_that_raises_for_a_status_hides_no_answer(scripted):
    """A stale write is told as one; an answer that stands is raised as that transport has it."""
    server, bearer = scripted(STALE, UNKNOWN), Bearer()
    transport = httpx_transport.FencedTransport(bearer, transport=Raising())
    with httpx.Client(mounts={server.url: transport}, trust_env=False) as client:
        with pytest.raises(StaleToken) as stale:
            client.post(server.url, headers=KEY)
        assert bearer.lost is stale.value
        with pytest.raises(httpx.HTTPStatusError) as raised:
            client.post(server.url, headers=KEY)
    assert raised.value.response.status_code == 404
    assert "Fencing-Token" not in raised.value.request.headers
    assert len(server.requests) == 2
