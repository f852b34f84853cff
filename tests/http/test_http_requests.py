"""The caller's half for requests: what is its own."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import socket
import threading

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Timeout

from sinkfence import NotEnforced, OutcomeUnknown, StaleToken, Token
from sinkfence_http import httpx_transport
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink

TOKEN = Token("invoice-42", 8, "b:1")
KEY = {"Idempotency-Key": TOKEN.key("mail 2026-05-01")}
OK = b"HTTP/1.1 200 X\r\nContent-Length: 5\r\nConnection: close\r\nFencing-Status: accepted\r\n\r\nhello"
ARMED = b"HTTP/1.1 204 X\r\nConnection: close\r\nFencing-Status: armed\r\n\r\n"
BUSY = (
    b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\nFencing-Status: fence-unavailable\r\n\r\n"
)
UNKNOWN = b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
STALE = (
    b"HTTP/1.1 412 X\r\nContent-Length: 0\r\nConnection: close\r\n"
    b"Fencing-Status: stale-token;current=9\r\n\r\n"
)


@pytest.fixture
def session():
    """A session."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


def test_a_file_is_sent_again_from_where_it_stood(session, scripted):
    """A repeated body starts where it started; one that can't be rewound isn't repeated."""
    body = io.BytesIO(b"header:payload")
    body.seek(7)
    server = scripted(None, OK, None, OK)
    session.mount(server.url + "/", FencedAdapter(TOKEN))
    assert session.post(server.url, headers=KEY, data=body).status_code == 200
    assert [server.body(n) for n in range(2)] == [b"payload", b"payload"]
    with pytest.raises(OutcomeUnknown):
        session.post(server.url, headers=KEY, data=iter([b"a", b"b"]))
    assert len(server.requests) == 3


def test_a_proxy_that_makes_no_way_to_the_service_was_sent_nothing_for_it(session, scripted, monkeypatch):
    """CONNECT is refused: the error of the library, and not OutcomeUnknown, as by httpx."""
    monkeypatch.setattr("sinkfence_http.calls.LONGEST_PAUSE", 0.0)
    proxy = scripted(*[b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"] * 6)
    session.proxies = {"https": proxy.url}
    session.mount("https://orders.example/", FencedAdapter(TOKEN))
    with pytest.raises(requests.exceptions.ProxyError):
        session.post("https://orders.example/accounts/17")
    assert len(proxy.requests) == 6
    assert proxy.header(0, "Fencing-Token") is None


@pytest.mark.parametrize("first", ["POST", "GET"])
def test_an_interim_answer_does_not_shift_the_later_ones(first):
    """After a 103 nobody reads the first call's final answer as the second call's own."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    final = b"HTTP/1.1 200 OK\r\nFencing-Status: accepted\r\nContent-Length: 0\r\n\r\n"
    late = threading.Event()

    def serve(listener):
        with contextlib.suppress(OSError), listener.accept()[0] as one, contextlib.ExitStack() as stack:
            one.recv(65536)
            one.sendall(hints)
            late.wait()
            with contextlib.suppress(OSError):
                one.sendall(final)
            second = stack.enter_context(listener.accept()[0])
            second.recv(65536)
            second.sendall(STALE)

    with socket.create_server(("127.0.0.1", 0)) as listener, requests.Session() as session:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        session.mount(url, FencedAdapter(TOKEN))
        with pytest.raises((OutcomeUnknown, requests.ConnectionError)):
            session.request(first, url)
        late.set()
        with pytest.raises(StaleToken):
            session.post(url)
        thread.join()


def test_what_can_not_be_sent_is_the_caller_s_error(session, scripted):
    """An address that isn't one was sent nothing, and isn't tried again."""
    server = scripted()
    session.mount(server.url + "/", FencedAdapter(TOKEN))
    with pytest.raises(requests.exceptions.InvalidProxyURL):
        session.post(server.url, proxies={"http": "http://"})
    assert server.requests == []


@pytest.mark.parametrize("timeout", [None, 5, (5, None), Timeout(5)], ids=repr)
def test_a_timeout_is_given_in_any_way_that_requests_takes(session, scripted, timeout):
    """Without a lease it is passed on as it is."""
    server = scripted(OK)
    session.mount(server.url + "/", FencedAdapter(TOKEN))
    assert session.post(server.url, timeout=timeout).text == "hello"


class Lease:
    """A bearer whose term is nearly over."""

    token = TOKEN

    def remaining(self) -> float:
        return 0.2

    def lose(self, reason: StaleToken) -> None:
        raise reason


@pytest.mark.parametrize(
    "timeout", [None, 60, (60, None), Timeout(), Timeout(60), Timeout(connect=60, read=60)], ids=repr
)
def test_a_lease_caps_a_timeout_of_any_kind(session, scripted, timeout):
    """Of urllib3 it is the whole that is capped, and the caller's own object stays as it was."""
    server, before = scripted(b"never"), repr(timeout)
    session.mount(server.url + "/", FencedAdapter(Lease()))
    with pytest.raises(OutcomeUnknown) as unknown:
        session.post(server.url, timeout=timeout)
    assert "(read timeout=0." in str(unknown.value.__cause__)
    assert repr(timeout) == before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_adapter_stays_where_its_lease_is(session, copied):
    """Neither it nor its session is copied, or sent to another process: that is said at once."""
    adapter = FencedAdapter(TOKEN)
    session.mount("http://127.0.0.1/", adapter)
    with pytest.raises(TypeError, match="mount a new one there"):
        copied(adapter)
    if copied is not copy.copy:  # which shares the adapters
        with pytest.raises(TypeError, match="mount a new one there"):
            copied(session)


def test_no_bearer_and_no_signer_is_refused_at_once(session):
    """Not when the first request is sent."""
    with pytest.raises(TypeError, match="not a NoneType"):
        FencedAdapter(None)
    for kind in (HttpSink, httpx_transport.HttpSink, httpx_transport.AsyncHttpSink):
        with pytest.raises(TypeError, match="sign is a function"):
            kind(session, "http://127.0.0.1/", sign="key")


def test_a_session_arms_a_durable_sink(session):
    """The marks behind a service's door outlive its process."""
    assert HttpSink(session, "http://127.0.0.1/").durable is True


@pytest.mark.parametrize("end", ["?a=b", "#a", "/?"])
@pytest.mark.parametrize("kind", [HttpSink, httpx_transport.HttpSink, httpx_transport.AsyncHttpSink])
def test_an_address_with_a_query_is_not_armed(session, kind, end):
    """Put to its end, the path would be a part of the query, and the POST another route's."""
    with pytest.raises(ValueError, match="no query"):
        kind(session, f"http://127.0.0.1/orders{end}")


class Sealed(io.BytesIO):
    """A body that goes back to its start for nobody."""

    def seek(self, *_: int) -> int:
        raise OSError("it is a pipe")


def test_a_body_that_goes_back_no_more_after_an_attempt_without_an_answer(scripted):
    """The first attempt may have been applied: that is what is told, and not the trouble with the second."""
    server = scripted(None)
    with requests.Session() as http:
        http.mount(server.url, FencedAdapter(Token("job", 7, "o")))
        with pytest.raises(OutcomeUnknown) as told:
            http.post(server.url, data=Sealed(b"1"), headers={"Idempotency-Key": "k"})
    assert isinstance(told.value.__cause__, requests.exceptions.UnrewindableBodyError)


def test_a_signer_that_fails_after_an_attempt_without_an_answer(scripted):
    """The same where the token must be signed again and can't be."""
    signatures = iter(["a.b.c"])
    expired = b"HTTP/1.1 401 No\r\nFencing-Status: token-expired\r\nContent-Length: 0\r\n\r\n"
    server = scripted(None, expired)
    with requests.Session() as http:
        http.mount(server.url, FencedAdapter(Token("job", 7, "o"), sign=lambda _: next(signatures)))
        with pytest.raises(OutcomeUnknown):
            http.post(server.url, data=b"1", headers={"Idempotency-Key": "k"})


class Raising(HTTPAdapter):
    """An adapter that raises for a status."""

    def send(self, request, *settings, **more):
        response = super().send(request, *settings, **more)
        response.raise_for_status()
        return response


class RaisingFenced(FencedAdapter):
    """One that carries tokens, too."""

    def transmit(self, request, **settings):
        response = super().transmit(request, **settings)
        response.raise_for_status()
        return response


def test_an_adapter_that_raises_for_a_status_hides_no_answer(session, scripted):
    """Arming is told what the service has said: stale at once, a busy door is asked again, and what armed
    nothing is no unknown outcome."""
    server = scripted(STALE, BUSY, ARMED, UNKNOWN)
    session.mount(server.url + "/", Raising())
    sink = HttpSink(session, server.url)
    with pytest.raises(StaleToken) as stale:
        sink.arm(TOKEN)
    assert (stale.value.mark, stale.value.earlier_attempt_unknown) == (9, False)
    assert "Fencing-Token" not in stale.value.__context__.response.request.headers
    sink.arm(TOKEN)
    with pytest.raises(NotEnforced):
        sink.arm(TOKEN)
    assert len(server.requests) == 4


def test_a_write_by_an_adapter_that_raises_for_a_status(session, scripted):
    """A stale one is told as one; an answer that stands is raised as that adapter has it, to be read."""
    server = scripted(STALE, OK.replace(b"200", b"404"))
    session.mount(server.url + "/", RaisingFenced(TOKEN))
    with pytest.raises(StaleToken):
        session.post(server.url, headers=KEY)
    with pytest.raises(requests.HTTPError) as raised:
        session.post(server.url, headers=KEY)
    assert raised.value.response.content == b"hello"
    assert "Fencing-Token" not in raised.value.request.headers
    assert len(server.requests) == 2


def test_a_session_s_hook_comes_after_the_token_was_judged(session, scripted):
    """A hook that raises for a status is reached by answers that stand alone."""
    server = scripted(STALE, UNKNOWN)
    session.hooks["response"].append(lambda response, **_: response.raise_for_status())
    session.mount(server.url + "/", FencedAdapter(TOKEN))
    with pytest.raises(StaleToken):
        session.post(server.url)
    with pytest.raises(requests.HTTPError):
        session.post(server.url)
