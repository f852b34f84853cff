"""The caller's half, for each library: what is sent, what is repeated, and what an answer is taken for."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import pickle
import socket
import ssl
import threading

import httpx
import httpx2
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sinkfence import GenerationConflict, LeaseLost, NotEnforced, OutcomeUnknown, StaleToken, Token
from sinkfence_http import httpx2_transport, httpx_transport, requests_adapter
from sinkfence_http.calls import Caller
from sinkfence_http.requests_adapter import FencedAdapter

TOKEN = Token("invoice-42", 8, "b:1")
KEY = {"Idempotency-Key": TOKEN.key("mail 2026-05-01")}


def answer(status: int, fencing: str | None = None, *headers: str, body: bytes = b"hello") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    if fencing is not None:
        lines.append(f"Fencing-Status: {fencing}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def name(value: object) -> str | None:
    """A short name of an answer, for the list of tests."""
    if not isinstance(value, bytes):
        return None
    head = value.partition(b"\r\n\r\n")[0].decode()
    return "-".join([head[9:12], *(line.split()[1] for line in head.split("\r\n") if "Fencing" in line)])


OK = answer(200, "accepted")
BUSY = answer(503, "fence-unavailable")
STALE = answer(412, "stale-token;current=9")
EXPIRED = answer(412, "token-expired")


class Lease:
    """A bearer whose term the test moves by hand."""

    def __init__(self, left: float = 20.0, reads: int | None = None) -> None:
        self.left = left
        self.reads = itertools.count() if reads is None else iter(range(reads))
        self.lost: StaleToken | None = None

    @property
    def token(self) -> Token:
        if next(self.reads, None) is None:
            raise LeaseLost(TOKEN, "its term is over")
        return TOKEN

    def remaining(self) -> float:
        return self.left

    def lose(self, reason: StaleToken) -> None:
        self.lost = reason


class Requests:
    """requests, and its adapter."""

    unreachable = requests.ConnectionError
    unverified = requests.exceptions.SSLError

    def __init__(self, url, bearer=None, sign=None):
        self.session = requests.Session()
        self.session.trust_env = False
        if bearer is not None:
            self.session.mount(url, FencedAdapter(bearer, sign=sign))

    def request(self, method, url, *, body=None, headers=None):
        return self.session.request(method, url, data=body, headers=headers)

    def arm(self, url, bearer):
        requests_adapter.HttpSink(self.session, url).arm(bearer)

    def close(self):
        self.session.close()


CONTEXT = ssl.create_default_context()  # it takes long to make
SETTINGS = {"verify": CONTEXT, "trust_env": False, "follow_redirects": True}


class Sync:
    """A library of httpx's kind, and its transport."""

    def __init__(self, library, half):
        self.library, self.half = library, half
        self.unreachable = self.unverified = library.ConnectError

    def __call__(self, url, bearer=None, sign=None):
        made = type(self)(self.library, self.half)
        by = self.library.HTTPTransport(verify=CONTEXT)
        mounts = {} if bearer is None else {url: self.half.FencedTransport(bearer, sign=sign, transport=by)}
        made.client = self.library.Client(mounts=mounts, **SETTINGS)
        return made

    def request(self, method, url, *, body=None, headers=None):
        return self.client.request(method, url, content=body, headers=headers)

    def arm(self, url, bearer):
        self.half.HttpSink(self.client, url).arm(bearer)

    def close(self):
        self.client.close()


class Async(Sync):
    """The same on an event loop."""

    def __call__(self, url, bearer=None, sign=None):
        made = type(self)(self.library, self.half)
        by = self.library.AsyncHTTPTransport(verify=CONTEXT)
        mounts = (
            {} if bearer is None else {url: self.half.AsyncFencedTransport(bearer, sign=sign, transport=by)}
        )
        made.client = self.library.AsyncClient(mounts=mounts, **SETTINGS)
        made.runner = asyncio.Runner()
        return made

    def request(self, method, url, *, body=None, headers=None):
        return self.runner.run(self.client.request(method, url, content=body, headers=headers))

    def arm(self, url, bearer):
        self.runner.run(self.half.AsyncHttpSink(self.client, url).arm(bearer))

    def close(self):
        self.runner.run(self.client.aclose())
        self.runner.close()


# Each library, and each of the two loops; the two modules for httpx are one text, which a test sees to.
KINDS = {
    "requests": Requests,
    "httpx": Sync(httpx, httpx_transport),
    "httpx2-async": Async(httpx2, httpx2_transport),
}


@pytest.fixture(params=KINDS)
def library(request, monkeypatch):
    """One of the libraries, with short pauses."""
    monkeypatch.setattr("sinkfence_http.calls.FIRST_PAUSE", 0.01)
    return KINDS[request.param]


@pytest.fixture
def post(library, scripted):
    """Return a function that posts to a script, and the server that played it."""
    clients = []

    def run(*script, bearer=TOKEN, sign=None, method="POST", **how):
        run.server = scripted(*script)
        run.client = library(run.server.url + "/", bearer, sign)
        clients.append(run.client)
        return run.client.request(method, f"{run.server.url}/send", **how)

    yield run
    for client in clients:
        client.close()


def test_a_write_carries_the_token_and_the_caller_s_request_does_not(post):
    """The unsigned form is on the wire, and not in the request that the caller sees, logs or redirects."""
    response = post(OK, body=b"body")
    assert response.text == "hello"
    assert post.server.header(0, "Fencing-Token") == '"invoice-42";g=8;o="b:1"'
    assert post.server.body(0) == b"body"
    assert "Fencing-Token" not in response.request.headers


def test_a_read_carries_nothing_and_needs_no_status(post):
    """A safe method is sent as it is, and its answer is believed without Fencing-Status."""
    for method in ("GET", "HEAD", "OPTIONS"):
        assert post(answer(200, body=b""), method=method).status_code == 200
        assert post.server.header(0, "Fencing-Token") is None


@pytest.mark.parametrize(
    "reply",
    [answer(200), answer(204, body=b""), answer(303, None, "Location: /"), answer(200, "hm!")],
    ids=name,
)
def test_a_success_without_a_status_is_not_enforced(post, reply):
    """A service that doesn't know the header performs the write and says 200, or redirects: NotEnforced."""
    with pytest.raises(NotEnforced):
        post(reply, headers=KEY)
    assert len(post.server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [(STALE, StaleToken), (answer(412, "generation-conflict;current=8"), GenerationConflict)],
    ids=name,
)
def test_a_stale_token_ends_the_lease(post, reply, kind):
    """A refusal is raised as itself, told to the lease, and never repeated, even with a key."""
    lease = Lease()
    with pytest.raises(kind) as refused:
        post(reply, bearer=lease, headers=KEY)
    assert refused.value is lease.lost
    assert (refused.value.token, refused.value.mark) == (TOKEN, 9 if kind is StaleToken else 8)
    assert not refused.value.earlier_attempt_unknown
    assert len(post.server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [answer(412), answer(412, "accepted"), answer(403, "job-mismatch"), answer(409), answer(404)],
    ids=name,
)
def test_other_refusals_are_the_caller_s_to_read(post, reply):
    """An application's own 412 is no stale token; what isn't named is returned and not repeated."""
    lease = Lease()
    assert post(reply, bearer=lease, headers=KEY).status_code >= 400
    assert lease.lost is None
    assert len(post.server.requests) == 1


def test_an_expired_signature_is_made_anew_once(post):
    """token-expired: signed anew and sent again, one time; the header is kept until then."""
    signed = (f"eyJ{number}.a.b" for number in itertools.count())
    sign = lambda token: next(signed)  # noqa: E731
    assert post(EXPIRED, OK, OK, sign=sign).status_code == 200
    post.client.request("POST", post.server.url)
    assert [post.server.header(n, "Fencing-Token") for n in range(3)] == ["eyJ0.a.b", "eyJ1.a.b", "eyJ1.a.b"]
    assert post(EXPIRED, EXPIRED, OK, sign=sign).status_code == 412
    assert len(post.server.requests) == 2


@pytest.mark.parametrize("word", ["not-guarded", "outcome-unknown", "idempotency-key-required;applied"])
def test_an_effect_that_may_stand_is_unknown_and_not_repeated(post, word):
    """not-guarded comes before the rule for 5xx: nothing is sent again, even with a key."""
    with pytest.raises(OutcomeUnknown):
        post(answer(500, word), OK, headers=KEY)
    assert len(post.server.requests) == 1


def test_no_answer_without_a_key_is_unknown(post):
    """Sent, and the connection cut: it is not sent again, because the first may have been applied."""
    with pytest.raises(OutcomeUnknown):
        post(None, OK)
    assert len(post.server.requests) == 1


def test_no_answer_with_a_key_is_repeated_with_the_same_key(post):
    """With an Idempotency-Key the call is repeated until it is answered: the same key, the same body."""
    assert post(None, None, OK, headers=KEY, body=b"body").status_code == 200
    assert {post.server.header(n, "Idempotency-Key") for n in range(3)} == {KEY["Idempotency-Key"]}
    assert {post.server.body(n) for n in range(3)} == {b"body"}


def test_half_an_answer_is_none(post):
    """A body that breaks off leaves the caller without its answer."""
    with pytest.raises(OutcomeUnknown):
        post(OK[:-2])
    assert post(OK[:-2], OK, headers=KEY).text == "hello"


def test_a_refusal_after_a_lost_answer_says_so(post):
    """Stale on the second attempt: the first may have been applied, and the error carries that."""
    with pytest.raises(StaleToken) as refused:
        post(None, STALE, headers=KEY)
    assert refused.value.earlier_attempt_unknown
    assert pickle.loads(pickle.dumps(refused.value)).earlier_attempt_unknown


@pytest.mark.parametrize("reply", [answer(409), answer(400), answer(404), answer(500), BUSY], ids=name)
def test_after_a_lost_answer_only_a_success_is_known(post, reply):
    """A 409 after a lost answer may be our own success: unknown, whatever the status."""
    with pytest.raises(OutcomeUnknown):
        post(None, *[reply] * 6, headers=KEY, bearer=Lease(left=0.5))


@pytest.mark.parametrize(
    "reply",
    [
        BUSY,
        answer(409, "request-in-progress"),
        answer(503, "previous-owner-in-flight"),
        answer(408),
        answer(425),
        answer(429),
    ],
    ids=name,
)
def test_what_was_put_off_is_repeated_without_a_key(post, reply):
    """An answer from before anything ran is safe to repeat."""
    assert post(reply, reply, OK).status_code == 200


@pytest.mark.parametrize(
    "reply", [answer(500), answer(502), answer(429, "accepted"), answer(503, "accepted")], ids=name
)
def test_what_may_have_run_is_repeated_with_a_key_only(post, reply):
    """A 5xx, or anything that a handler said, may have had its effect."""
    assert post(reply, OK).status_code >= 400
    assert len(post.server.requests) == 1
    assert post(reply, OK, headers=KEY).status_code == 200


def test_attempts_come_to_an_end(post):
    """A service that stays busy is asked a bounded number of times, and its last answer is returned."""
    assert post(*[BUSY] * 20).status_code == 503
    assert len(post.server.requests) == 6


def test_a_wait_beyond_the_lease_is_not_begun(post):
    """Retry-After beyond what is left of the lease: the answer is returned at once."""
    assert post(answer(503, "fence-unavailable", "Retry-After: 30"), OK, bearer=Lease()).status_code == 503


def test_a_wait_until_a_moment_is_counted_by_the_answer_s_own_date(post):
    """Retry-After as a date of HTTP: the clock here may be another. Without a Date, nothing is asked for."""
    moment = "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT"
    put_off = answer(503, "fence-unavailable", moment, "Date: Fri, 31 Dec 1999 23:59:29 GMT")
    assert post(put_off, OK, bearer=Lease()).status_code == 503  # 30 seconds are beyond the lease
    for date in (
        "Date: Fri, 31 Dec 1999 23:59:59 GMT",
        "Date: Sat, 01 Jan 2000 00:00:00 GMT",
        "Date: ?",
        "X: y",
    ):
        assert post(answer(503, "fence-unavailable", moment, date), OK, bearer=Lease()).status_code == 200
    assert post(answer(503, "fence-unavailable", "Retry-After: soon"), OK).status_code == 200


def test_what_is_no_bearer_and_no_signer_is_refused_at_once(library):
    """Not when the first request is sent."""

    async def sign(token):
        return ""

    for bearer in ("lease", [TOKEN]):
        with pytest.raises(TypeError, match="a bearer is a lease or a token"):
            library("http://127.0.0.1/", bearer)
    for signer in (sign, "key", b"k" * 32):
        with pytest.raises(TypeError, match="sign is a"):
            library("http://127.0.0.1/", TOKEN, signer)


def test_a_service_that_can_not_be_reached_was_not_written_to(library):
    """No connection ever came about: the error of the library, not OutcomeUnknown."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with contextlib.closing(library(url, Lease(left=0.3))) as client, pytest.raises(library.unreachable):
        client.request("POST", url)


def test_a_service_that_can_not_prove_itself_was_not_written_to(library, tmp_path):
    """A certificate that nobody vouches for: the error of the library, at once, and nothing was sent."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(who, who, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    handshakes = []

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as client:
                    handshakes.append(client)
                    with contextlib.suppress(OSError), context.wrap_socket(client, server_side=True):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        with contextlib.closing(library(url, TOKEN)) as client, pytest.raises(library.unverified):
            client.request("POST", url)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(handshakes) == 1


def test_a_silent_service_is_waited_for_within_the_lease(post):
    """Without a timeout of the caller's the lease is one: sent without an answer is unknown."""
    with pytest.raises(OutcomeUnknown):
        post(b"never", bearer=Lease(left=0.2))


def test_a_lease_that_is_over_sends_nothing(post):
    """The token is read before anything is sent."""
    with pytest.raises(LeaseLost):
        post(OK, bearer=Lease(reads=0))
    assert post.server.requests == []


def test_a_lease_that_ends_between_attempts(post):
    """Lost before a second attempt: unknown if the first may have been applied, LeaseLost if not."""
    with pytest.raises(OutcomeUnknown):
        post(None, OK, headers=KEY, bearer=Lease(reads=2))
    with pytest.raises(LeaseLost):
        post(BUSY, OK, headers=KEY, bearer=Lease(reads=2))


def test_a_lease_that_ends_during_the_answer(post):
    """A body may drip in for longer than the lease: the write was accepted, and its answer isn't withheld."""
    assert post(OK, bearer=Lease(reads=2)).text == "hello"


def test_a_redirect_to_a_read_takes_no_token_along(post, scripted):
    """A 303 is followed by a bare GET, wherever it leads."""
    other = scripted(answer(200))
    assert post(answer(303, "accepted", f"Location: {other.url}/")).status_code == 200
    assert b"invoice-42" not in other.requests[0]
    assert other.requests[0].startswith(b"GET ")


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_of_the_write_itself_is_not_followed(post, method, status):
    """Even on the same host it may lead beyond what the adapter is mounted on, where no token goes along."""
    reply = answer(status, "accepted", "Location: /elsewhere")
    if (method, status) == ("POST", 301):  # becomes a GET
        assert post(reply, answer(200), method=method).status_code == 200
        return
    with pytest.raises(NotEnforced):
        post(reply, OK, method=method)
    for fencing in ("accepted", None):  # a proxy's; without a Location it is no success, either
        with pytest.raises(NotEnforced, match="asks for the write again"):
            post(answer(status, fencing), method=method)
    assert len(post.server.requests) == 1
    with pytest.raises(OutcomeUnknown):
        post(None, reply, method=method, headers=KEY)


@pytest.mark.parametrize("status", [101, 103, 199, 600, 999])
def test_a_status_that_is_no_final_answer_is_none(post, status):
    """What became of the request isn't said: unknown without a key, repeated with one."""
    reply = f"HTTP/1.1 {status} X\r\nFencing-Status: accepted\r\n\r\n".encode()
    with pytest.raises(OutcomeUnknown):
        post(reply, OK)
    assert post(reply, OK, headers=KEY).status_code == 200


def test_a_partly_applied_call_that_is_stale_says_so(post):
    """Its handler had committed something when it was refused: that stands, and the error carries it."""
    with pytest.raises(StaleToken) as refused:
        post(answer(412, "stale-token;current=9;applied"))
    assert refused.value.mark == 9
    assert refused.value.earlier_attempt_unknown


@pytest.mark.parametrize("said", ["accepted, accepted", "Hm", ""])
def test_a_status_that_can_not_be_read_is_not_taken_for_none(post, said):
    """A 429 under an unreadable Fencing-Status is no proxy's word: not repeated without a key."""
    assert post(answer(429, said), OK).status_code == 429
    assert len(post.server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        OK.replace(b"Content-Length: 5", b"Content-Length: 5, 6"),
        OK.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        answer(200, "accepted", "Content-Encoding: gzip"),
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 50_000 + b"\r\n",
    ],
    ids=["two lengths", "no chunks", "no gzip", "no http", "many headers"],
)
def test_an_answer_that_can_not_be_read_is_none(post, reply):
    """Whatever the library makes of it, what became of the call isn't known."""
    with pytest.raises(OutcomeUnknown):
        post(reply, OK)
    assert post(reply, OK, headers=KEY).status_code == 200


def test_an_error_carries_the_caller_s_request(post):
    """What is raised, and then logged, leads to the request without the token."""
    with pytest.raises(OutcomeUnknown) as unknown:
        post(None)
    assert "Fencing-Token" not in unknown.value.__cause__.request.headers


def test_a_malformed_idempotency_key_is_refused_before_sending(post):
    """A key that a service would refuse is a ValueError here."""
    with pytest.raises(ValueError):
        post(OK, headers={"Idempotency-Key": "two words"})
    assert post.server.requests == []


@pytest.fixture
def arm(library):
    """Return a function that arms a server, by a client on which another bearer may be mounted."""

    def run(server, bearer=TOKEN, mounted=None):
        with contextlib.closing(library(server.url + "/", mounted)) as client:
            client.arm(server.url + "/api/", bearer)

    return run


def test_arming_posts_to_the_well_known_place(arm, scripted):
    """204 `armed` is the one answer that arms; it is asked for again at will, whatever bearer is mounted."""
    server = scripted(None, BUSY, answer(204, "armed", body=b""))
    arm(server, mounted=Token("invoice-41", 3, "old"))
    assert server.requests[2].startswith(b"POST /api/.well-known/fencing-arm ")
    assert {server.header(n, "Fencing-Token") for n in range(3)} == {'"invoice-42";g=8;o="b:1"'}


@pytest.mark.parametrize(
    "reply",
    [
        answer(200),
        answer(204, body=b""),
        answer(200, "armed"),
        answer(204, "accepted", body=b""),
        answer(404),
        answer(403, "unauthentic-token"),
    ],
    ids=name,
)
def test_any_other_answer_to_arming_is_not_enforced(arm, scripted, reply):
    """A service that doesn't arm would not stop a stale owner."""
    with pytest.raises(NotEnforced):
        arm(scripted(reply))


def test_arming_with_a_token_that_is_not_trusted_says_where_to_look(arm, scripted):
    """The service stands guard, and it is the signature that is wrong."""
    with pytest.raises(NotEnforced, match="does not trust this token: look at key, issuer, audience"):
        arm(scripted(answer(403, "unauthentic-token")))


@pytest.mark.parametrize(
    ("reply", "where"),
    [(answer(412, "token-expired"), "clock"), (answer(400, "malformed-token"), "signs tokens")],
    ids=["expired", "malformed"],
)
def test_arming_says_what_is_wrong_with_the_token(arm, scripted, reply, where):
    """The service stands guard: it is the clocks that differ, or one side does not sign."""
    with pytest.raises(NotEnforced, match=where):
        arm(scripted(reply, reply))


def test_arming_too_late_is_stale(arm, scripted):
    """A newer owner was seen: the lease hears it."""
    lease = Lease()
    with pytest.raises(StaleToken) as refused:
        arm(scripted(STALE), lease)
    assert refused.value is lease.lost


def test_arming_that_gets_no_answer_is_unknown(arm, scripted):
    """Whether the mark was raised is not known: arm again."""
    with pytest.raises(OutcomeUnknown):
        arm(scripted(*[None] * 9), Lease(left=0.3))
    with pytest.raises(OutcomeUnknown):
        arm(scripted(*[BUSY] * 9), Lease(left=0.3))


def test_a_service_that_is_no_longer_itself_leaves_what_was_sent_unknown():
    """The first attempt got no answer, the second meets a stranger's certificate: not the library's error."""
    call = Caller(TOKEN, None).begin("POST", KEY["Idempotency-Key"], rewindable=True)
    call.attempt()
    assert call.failed(ConnectionResetError(), sent=True) > 0
    call.attempt()
    with pytest.raises(OutcomeUnknown):
        call.failed(ssl.SSLCertVerificationError(), sent=False, hopeless=True)
