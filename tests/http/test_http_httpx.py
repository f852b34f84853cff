"""The caller's half for httpx and httpx2: what is their own."""

from __future__ import annotations

import asyncio
import gzip
import io
from pathlib import Path

import httpx
import httpx2
import pytest

from sinkfence import OutcomeUnknown, StaleToken, Token
from sinkfence_http import httpx2_transport, httpx_transport

TOKEN = Token("invoice-42", 8, "b:1")
KEY = {"Idempotency-Key": TOKEN.key("mail 2026-05-01")}
OK = b"HTTP/1.1 200 X\r\nContent-Length: 5\r\nConnection: close\r\nFencing-Status: accepted\r\n\r\nhello"
ARMED = b"HTTP/1.1 204 X\r\nConnection: close\r\nFencing-Status: armed\r\n\r\n"
STALE = b"HTTP/1.1 412 X\r\nContent-Length: 0\r\nConnection: close\r\nFencing-Status: stale-token\r\n\r\n"
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
