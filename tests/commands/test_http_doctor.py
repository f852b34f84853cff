"""`sinkfence doctor http`: what it finds at services that are fenced, half fenced and not."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
import requests
from command_line import Sinkfence
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sinkfence import Leases, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_http import (
    Fence,
    HostGate,
    Refused,
    Report,
    SignedTokens,
    TokenSigner,
    TrustedNetwork,
    VerificationKey,
    aio,
    doctor,
    wire,
    wsgi,
)
from sinkfence_http.answers import UNAUTHENTIC
from sinkfence_http.asgi import FencingMiddleware
from sinkfence_http.doctor import JOB
from sinkfence_http.requests_adapter import FencedAdapter
from sinkfence_postgres import install, marks
from sinkfence_postgres.aio import PostgresSink

Serve = Callable[..., str]
KEY = ed25519.Ed25519PrivateKey.generate()
NAMES = {"kid": "k1", "issuer": "workers", "audience": "orders"}
EVERY_METHOD = ["POST", "PUT", "PROPFIND", "GET"]
REFUSALS = [
    "no token",
    "malformed token",
    "two tokens",
    "two tokens in one field",
    "another owner",
    "stale token",
]
FORGERIES = [f"forged: {way}" for way in ("unsigned", "alg none", "other claims", "another's key")]


def signed(key: Any = None, alg: str = "EdDSA") -> TokenSigner:
    """What the workers sign with."""
    return TokenSigner(key or KEY, alg=alg, **NAMES)


def trusted(key: Any = None, alg: str = "EdDSA") -> SignedTokens:
    """What the service believes."""
    known = VerificationKey(key=key or KEY.public_key(), alg=alg, issuer="workers")
    return SignedTokens({"k1": known}, audience="orders")


class App:
    """A service that writes whatever it is asked to, and keeps what reached it."""

    def __init__(self, gate: Any, verifier: Any, **options: Any) -> None:
        self.reached: list[str] = []

        async def handle(request: Request) -> PlainTextResponse:
            self.reached.append(f"{request.method} {request.url.path}")
            return PlainTextResponse("done")

        routes = [Route(path, handle, methods=EVERY_METHOD) for path in ("/orders/{n}", "/open/{n}")]
        fence = aio.Fence(gate, verifier)
        self.app = Starlette(
            routes=routes, middleware=[Middleware(FencingMiddleware, fence=fence, **options)]
        )


def grades(report: Report) -> dict[str, str]:
    """What was found, by name."""
    return {each.name: each.grade for each in report.findings}


@pytest.fixture
def gate(tmp_path: Path) -> aio.HostGate:
    """A folder that marks are kept in."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return aio.HostGate(folder)


@pytest.fixture
def session() -> Iterator[requests.Session]:
    """What the doctor asks by."""
    with requests.Session() as opened:
        yield opened


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve whatever `answer` makes of each request: a proxy in the way, say."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return lambda: answer(self)
            raise AttributeError(name)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def wsgi_server(app: Any) -> Iterator[str]:
    """Serve a WSGI application."""

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_fenced_service_refuses_all(serve: Serve, dsn: str, session: requests.Session) -> None:
    """Before a Postgres: each is refused as it should be, nothing reaches a handler, one mark stays."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        install(conn)
        service = App(PostgresSink(dsn), trusted())
        url = serve(service.app)
        report = doctor(session, url, sign=signed(), path="/orders/17")
        assert report.fenced, report
        found = grades(report)
        behind = [f"PROPFIND /orders/17: {name}" for name in REFUSALS + FORGERIES]
        assert {name: found[name] for name in [*REFUSALS, *FORGERIES, *behind, "arming"]} == dict.fromkeys(
            [*REFUSALS, *FORGERIES, *behind, "arming"], "ok"
        )
        assert doctor(session, url, sign=signed()).fenced, "again, above the mark of the first visit"
        assert service.reached == []
        assert [mark.job_id for mark in marks(conn)] == [JOB]


@pytest.mark.parametrize("alg", ["ES256", "HS256", "RS256"])
def test_each_algorithm_is_forged(
    serve: Serve, gate: aio.HostGate, session: requests.Session, alg: str
) -> None:
    """Another's key is one of the service's own kind."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    made: dict[str, Callable[[], Any]] = {
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "HS256": lambda: b"s" * 32,
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
    }
    key = made[alg]()
    public = key if alg == "HS256" else key.public_key()
    report = doctor(session, serve(App(gate, trusted(public, alg)).app), sign=signed(key, alg))
    assert report.fenced, report
    assert [name for name in grades(report) if name.startswith("forged")] == FORGERIES


def test_an_unsigned_service_is_weak(serve: Serve, gate: aio.HostGate, session: requests.Session) -> None:
    """TrustedNetwork fences, and says that it believes anybody."""
    found = grades(report := doctor(session, serve(App(gate, TrustedNetwork()).app)))
    assert report.fenced, report
    assert (found["unsigned token"], found["stale token"]) == ("weak", "ok")


def test_an_unfenced_service_is_told_and_left_alone(
    serve: Serve, gate: aio.HostGate, session: requests.Session
) -> None:
    """Without a door nothing but one request to the well-known path is sent, and no token."""
    service = App(gate, trusted(), exempt=lambda _: True)  # lets all pass
    report = doctor(session, serve(service.app), sign=signed(), path="/orders/17")
    assert not report.fenced
    assert [(each.name, each.grade) for each in report.findings] == [("no token", "broken")]
    assert "no door stands there" in str(report)
    assert service.reached == []


def test_an_exempt_route_is_told_after_one_request(
    serve: Serve, gate: aio.HostGate, session: requests.Session
) -> None:
    """A route that no door stands before is reached once, without a token and by a safe method."""
    service = App(gate, trusted(), exempt=lambda scope: scope["path"].startswith("/open/"))
    report = doctor(session, serve(service.app), sign=signed(), path="open/17")
    assert not report.fenced
    assert grades(report)["PROPFIND open/17: no token"] == "broken"
    assert service.reached == ["PROPFIND /open/17"]


def test_a_verifier_that_believes_anything_is_broken(
    serve: Serve, gate: aio.HostGate, session: requests.Session
) -> None:
    """Where a signature isn't looked at, each forgery is let in, and said so."""
    import jwt

    class Gullible:
        def verify(self, value: str) -> Token:
            if value.startswith('"'):
                return TrustedNetwork().verify(value)
            try:
                claims = jwt.decode(value, options={"verify_signature": False, "verify_aud": False})
            except jwt.DecodeError:
                raise ValueError from None
            return Token(claims["job"], claims["gen"], claims["sub"])

    report = doctor(session, serve(App(gate, Gullible()).app), sign=signed())
    assert not report.fenced
    found = grades(report)
    assert [name for name in FORGERIES if found[name] == "broken"] == FORGERIES
    assert "LET IN" in str(report)


@pytest.mark.parametrize(
    "sign", [None, signed(ed25519.Ed25519PrivateKey.generate())], ids=["unsigned", "other"]
)
def test_a_doctor_with_the_wrong_key_says_so(
    serve: Serve, gate: aio.HostGate, session: requests.Session, sign: Any
) -> None:
    """What can't be armed can't be asked about stale tokens: unknown, and what to sign with."""
    report = doctor(session, serve(App(gate, trusted()).app), sign=sign)
    assert not report.fenced
    assert grades(report)["arming"] == "unknown"
    assert "stale token" not in grades(report)
    assert "sign as the workers do" in str(report)


def test_numbers_that_are_looked_up(serve: Serve, gate: aio.HostGate, session: requests.Session) -> None:
    """A service that asks where numbers are issued does not believe the doctor's: unknown, not fenced."""

    async def current(_: str) -> None:
        return None

    report = doctor(session, serve(App(gate, aio.AuthorityLookup(current)).app))
    assert (report.fenced, grades(report)["arming"]) == (False, "unknown")


def test_numbers_that_are_looked_up_and_found(
    sinkfence: Sinkfence, serve: Serve, gate: aio.HostGate, session: requests.Session, tmp_path: Path
) -> None:
    """With a lease of the store that it asks, such a service is asked about stale and invented numbers."""
    store = SqlStore(f"sqlite:///{tmp_path}/leases.db")
    store.create_schema()

    async def current(job_id: str) -> tuple[int, str | None] | None:
        found = store.get(job_id)
        return found and (found.generation, found.owner)

    url = serve(App(gate, aio.AuthorityLookup(current)).app)
    for _ in range(2):
        ran = sinkfence("doctor", "http", url, "--store", f"sqlite:///{tmp_path}/leases.db")
        assert ran.code == 0, ran
        assert "  ok      stale token: 412 stale-token\n" in ran.out
        assert "  ok      invented number: 403 unauthentic-token\n" in ran.out
        found = store.get(JOB)
        assert found is not None
        assert found.owner is None
    trusting = serve(App(gate, TrustedNetwork()).app)
    with Leases(store) as leases:
        report = doctor(session, trusting, bearer=leases.acquire(JOB))
        assert grades(report)["invented number"] == "broken", report
        with pytest.raises(ValueError, match="generation must be"):
            doctor(session, trusting, bearer=leases.acquire("first"))
        held = sinkfence("doctor", "http", url, "--store", f"sqlite:///{tmp_path}/leases.db")
    assert (held.code, held.out) == (1, "")
    assert "is held by" in held.err
    store.close()


def test_hosts_that_share_no_marks_are_found(tmp_path: Path, session: requests.Session) -> None:
    """Behind one address stand two hosts with marks of their own: one of them lets the stale token in."""
    doors: list[Any] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fence = Fence(HostGate(tmp_path / name), trusted())
        doors.append(wsgi.FencingMiddleware(lambda _environ, _start: [], fence))
    turns = itertools.cycle(doors)

    def balanced(environ: Any, start: Any) -> Any:
        return next(turns)(environ, start)

    with wsgi_server(balanced) as url:
        report = doctor(session, url, sign=signed())
    assert not report.fenced, report
    assert grades(report)["stale token"] == "broken", report


class Doors:
    """Services of another maker, each with marks of its own, in threads behind one address.

    As with processes that share a socket: who has nothing to do takes what comes, and that is always the
    first, until a connection stands open there.
    """

    def __init__(
        self,
        *,
        above: Callable[[int, int], bool] = int.__lt__,
        word: str = "stale-token",
        most: int = 1000,  # connections at once, of those that stay open
    ) -> None:
        self.above = above
        self.word = word
        self.most = most
        self.marks: list[dict[str, Token]] = [{}, {}]
        self.open = 0
        self.lock = Lock()

    def answer(self, value: str | None, marks: dict[str, Token]) -> tuple[int, str]:
        if value is None:
            return 428, "token-required"
        try:
            token = wire.parse_token(value)
        except ValueError:
            return 400, "malformed-token"
        mark = marks.get(token.job_id)
        if mark is not None and self.above(token.generation, mark.generation):
            return 412, self.word
        if mark is not None and token.generation == mark.generation and token.owner != mark.owner:
            return 412, "generation-conflict"
        marks[token.job_id] = token
        return 204, "armed"

    @contextmanager
    def served(self) -> Iterator[str]:
        doors = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                with doors.lock:
                    held = self.headers["Connection"] != "close"
                    if held and doors.open >= doors.most:
                        self.close_connection = True
                        return
                    marks = doors.marks[1 if held and doors.open else 0]
                    doors.open += held
                    lines = self.headers.get_all("Fencing-Token")
                    status, word = doors.answer(lines and ", ".join(lines), marks)
                self.send_response(status)
                self.send_header("Fencing-Status", word)
                body = b"" if status == 204 else b"{}"
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def test_workers_that_share_no_marks_are_met(session: requests.Session) -> None:
    """Of two workers the second gets what comes while the first has a connection open: it is met."""
    with Doors().served() as url:
        report = doctor(session, url)
    assert grades(report)["stale token"] == "broken", report
    assert not report.fenced


def test_a_server_of_one_connection_is_met_by_so_many(session: requests.Session) -> None:
    """What it answered at once, and then one after the other, is counted, and nothing else is."""
    doors = Doors(most=1)
    with doors.served() as url:
        report = doctor(session, url)
    assert report.fenced, report
    assert "refused over 9 connections" in str(report)


def test_what_is_not_seen_is_told(serve: Serve, session: requests.Session) -> None:
    """One worker's marks in memory look like marks that last: the report says what it can't see."""
    report = doctor(session, serve(App(aio.DoorOnly(), TrustedNetwork()).app))
    assert report.fenced, report
    assert grades(report)["workers"] == "note"
    assert "refused over 48 connections" in str(report)
    assert "outlive a restart" in str(report)


def test_a_door_that_compares_as_text_is_found(session: requests.Session) -> None:
    """A stale number of fewer digits is the higher one as text."""
    doors = Doors(above=lambda number, mark: str(number) < str(mark))
    doors.marks[1] = doors.marks[0]
    with doors.served() as url:
        found = grades(report := doctor(session, url))
    assert (found["stale token"], found["stale token of fewer digits"]) == ("ok", "broken"), report


def test_a_refusal_after_the_effect_is_broken(session: requests.Session) -> None:
    """`stale-token;applied` says that the stale request had taken effect."""
    doors = Doors(word="stale-token;applied")
    doors.marks[1] = doors.marks[0]
    with doors.served() as url:
        found = grades(report := doctor(session, url))
    assert found["stale token"] == "broken", report
    assert "it had taken effect" in str(report)


@pytest.mark.parametrize("base", ["/?to=1", "?", "/#x", "/a?b#c"])
def test_an_address_with_a_query_is_not_asked(session: requests.Session, base: str) -> None:
    """What is put to its end would be part of the query, and reach a handler: nothing is sent."""
    with pytest.raises(ValueError, match="no query"):
        doctor(session, f"http://127.0.0.1:1{base}", path="x")


@pytest.mark.parametrize(
    ("path", "method"),
    [("orders/17", "get"), ("orders/17", "OPTIONS"), ("https://orders.example/orders/17", "PROPFIND")],
)
def test_a_route_that_no_door_would_check_is_not_asked(
    serve: Serve, gate: aio.HostGate, session: requests.Session, path: str, method: str
) -> None:
    """A door lets reads pass, and a whole URL is no path below another: neither says anything of a fence."""
    service = App(gate, trusted())
    with pytest.raises(ValueError, match=r"pass without a token|no URL itself"):
        doctor(session, serve(service.app), sign=signed(), path=path, method=method)
    assert service.reached == []


@pytest.mark.parametrize("lax", ["aud", "iss", "kid", "exp"])
def test_a_key_for_other_services_is_not_enough(
    serve: Serve, gate: aio.HostGate, session: requests.Session, lax: str
) -> None:
    """A service that looks at one of audience, issuer, kid and expiry too few is found."""
    import jwt

    class Lax:
        def verify(self, value: str) -> Token:
            if value.startswith('"') or "," in value:
                raise ValueError
            try:
                claims = jwt.decode(
                    value, KEY.public_key(), ["EdDSA"], options={"verify_aud": False, "verify_exp": False}
                )
            except jwt.PyJWTError:
                raise Refused(UNAUTHENTIC) from None
            kid = jwt.get_unverified_header(value)["kid"]
            fine = {
                "aud": claims["aud"] == "orders",
                "iss": claims["iss"] == "workers",
                "kid": kid == "k1",
                "exp": claims["exp"] > time.time(),
            }
            if not all(found for name, found in fine.items() if name != lax):
                raise Refused(UNAUTHENTIC)
            return Token(claims["job"], claims["gen"], claims["sub"])

    report = doctor(session, serve(App(gate, Lax()).app), sign=signed())
    tried = {
        name.removeprefix("signed: "): grade
        for name, grade in grades(report).items()
        if name.startswith("signed: ")
    }
    names = {"aud": "another audience", "iss": "another issuer", "kid": "another kid", "exp": "expired"}
    assert tried == {**dict.fromkeys(names.values(), "ok"), names[lax]: "broken"}, report


@pytest.mark.parametrize(
    ("status", "headers", "grade", "says"),
    [
        (428, {}, "broken", "have the proxy pass Fencing-Status on"),
        (403, {"Fencing-Status": "token-required"}, "weak", "something on the way changes the status"),
        (401, {}, "unknown", "have the doctor let in"),
        (302, {"Location": "/login"}, "unknown", "it leads elsewhere"),
        (404, {}, "broken", "no door stands there"),
        (200, {}, "broken", "no door stands there"),
        (503, {"Fencing-Status": "fence-unavailable"}, "unknown", "its gate can't be asked"),
        (502, {}, "unknown", "ask again"),
    ],
)
def test_what_stands_in_the_way_is_told(
    session: requests.Session, status: int, headers: dict[str, str], grade: str, says: str
) -> None:
    """A login, a redirect, a proxy that drops the header or changes the status, a gate that is down."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            handler.send_header(name, value)
        handler.end_headers()

    with answering(answer) as url:
        report = doctor(session, url)
    assert grades(report)["no token"] == grade
    assert says in str(report)


def test_a_lease_that_is_mounted_is_left_alone(
    serve: Serve, gate: aio.HostGate, session: requests.Session
) -> None:
    """A session of a worker's can be asked with: its own token goes with none of the doctor's requests."""
    service = App(gate, trusted())
    url = serve(service.app)
    session.mount(url, FencedAdapter(Token("account-17", 5, "worker-a:1"), sign=signed()))
    session.headers["Fencing-Token"] = "stays out"
    assert doctor(session, url, sign=signed()).fenced


def test_the_command(sinkfence: Sinkfence, serve: Serve, gate: aio.HostGate, tmp_path: Path) -> None:
    """0 and `fenced`; --json with its shape; the key by a PEM file; a login by a header."""
    pem = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "workers.pem").write_bytes(pem)
    sign = ["--sign-key", str(tmp_path / "workers.pem")]
    sign += [part for name, value in NAMES.items() for part in (f"--{name}", value)]
    url = serve(App(gate, trusted()).app)
    fine = sinkfence(
        "doctor", "http", url, *sign, "--path", "/orders/17", "--header", "Authorization: Basic eA=="
    )
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.endswith("\nfenced\n")
    shown = json.loads(sinkfence("doctor", "http", url, "--json").out)
    assert shown["fenced"] is False
    assert shown["where"] == f"service at {url}"
    assert shown["findings"][0] == {
        "name": "no token",
        "grade": "ok",
        "says": "428 token-required",
        "advice": "",
    }
    assert sinkfence("doctor", "http", url).code == 1


def test_mistakes_are_a_line(sinkfence: Sinkfence, tmp_path: Path) -> None:
    """No server, no key, half of the options, no URL: a line each, and nothing of a password."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://ops:geheim@127.0.0.1:{port}"
    (tmp_path / "bad.pem").write_text("no key")
    (tmp_path / "public.pem").write_bytes(
        KEY.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    full = ["--kid", "k1", "--issuer", "workers", "--audience", "orders"]
    for arguments, code, says in [
        ([url], 3, "Connection refused"),
        (["orders.example"], 2, "begins with http:// or https://"),
        (["http://[::1", "--path", "x"], 2, ""),
        ([url, "--sign-key", "nowhere.pem", *full], 2, "--sign-key: No such file or directory"),
        ([url, "--sign-key", str(tmp_path / "bad.pem"), *full], 2, "--sign-key: this key does not fit EdDSA"),
        ([url, "--sign-key", str(tmp_path / "bad.pem"), *full, "--alg", "none"], 2, "alg must be one of"),
        ([url, "--sign-key", str(tmp_path / "bad.pem")], 2, "--sign-key needs --kid, --issuer, --audience"),
        ([url, "--header", "nonsense"], 2, "--header is 'NAME: VALUE'"),
        ([url, "--header", "x: geheim\nb"], 2, "--header is 'NAME: VALUE'"),
        ([url, "--sign-key", str(tmp_path / "public.pem"), *full], 2, "--sign-key: this is a public key"),
        ([f"http://ops:4711/geheim@127.0.0.1:{port}"], 2, "that URL can't be read"),
        ([f"{url}/?to=geheim"], 2, "has no ? and no #"),
        ([f"{url}/#geheim"], 2, "has no ? and no #"),
        ([url, "--method", "NO GOOD", "--path", "x"], 3, ""),
    ]:
        ran = sinkfence("doctor", "http", *arguments)
        assert (ran.code, ran.out) == (code, ""), (arguments, ran)
        assert says in ran.err
        assert ran.err.startswith("sinkfence: ")
        assert ran.err.count("\n") == 1
        assert "geheim" not in ran.err
