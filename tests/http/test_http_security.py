"""What a stranger can do to a fenced service, with each gate and verifier: nothing, and learn nothing."""

from __future__ import annotations

import asyncio
import hmac
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import sinkfence_http
import sinkfence_postgres
import sinkfence_postgres.aio
from sinkfence import Token
from sinkfence_http import (
    AuthorityLookup,
    SignedTokens,
    TokenSigner,
    TrustedNetwork,
    VerificationKey,
    aio,
    asgi,
    verifiers,
    wsgi,
)
from sinkfence_http.wire import format_token
from sinkfence_postgres import install

MAX = 10**15 - 1
WORKERS, OTHERS, STRANGER = (ed25519.Ed25519PrivateKey.generate() for _ in range(3))


def signer(key: Any, kid: str = "k1", issuer: str = "workers", audience: str = "ledger") -> TokenSigner:
    return TokenSigner(key, kid=kid, alg="EdDSA", issuer=issuer, audience=audience)


def known(key: Any, issuer: str) -> VerificationKey:
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return VerificationKey(key=public, alg="EdDSA", issuer=issuer)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def fencing(self) -> str | None:
        return self.headers.get("fencing-status")


class Service:
    """A handler behind one of the two doors, called as a server calls it."""

    def __init__(self, fence: Any, job: str) -> None:
        self.fence = fence
        self.job = job
        self.runs = 0
        self.read = 0
        """How many bytes of a body were asked for."""

    def ask(self, value: str, path: str = "/", body: Any = (b"",), **more: str) -> Reply:
        headers = {"fencing-token": value} | {name.replace("_", "-"): text for name, text in more.items()}
        if isinstance(self.fence, aio.Fence):
            return asyncio.run(self._asgi(headers, path, iter(body)))
        return self._wsgi(headers, path, iter(body))

    def _wsgi(self, headers: dict[str, str], path: str, parts: Iterator[bytes]) -> Reply:
        told: list[Any] = []

        def app(environ: Any, start: Any) -> Any:
            self.runs += 1
            self.fence.admit(environ, self.job)
            start("200 OK", [("Content-Type", "text/plain")])
            return [b"secret %d" % self.runs]

        class Input(io.RawIOBase):
            def read(reader, size: int = -1) -> bytes:  # noqa: N805
                part = next(parts, b"")
                self.read += len(part)
                return part

        names = {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in headers.items()}
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "wsgi.input": Input()}
        environ |= {"wsgi.input_terminated": True} | names
        answer = wsgi.FencingMiddleware(app, self.fence)(environ, lambda *head: told.append(head))
        body = b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        return Reply(int(told[-1][0][:3]), {name.lower(): text for name, text in told[-1][1]}, body)

    async def _asgi(self, headers: dict[str, str], path: str, parts: Iterator[bytes]) -> Reply:
        told: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.runs += 1
            await self.fence.admit(scope, self.job)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"secret %d" % self.runs})

        async def receive() -> Any:
            part = next(parts, None)
            self.read += len(part or b"")
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}

        async def send(message: Any) -> None:
            told.append(message)

        pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": pairs}
        await asgi.FencingMiddleware(app, self.fence)(scope, receive, send)
        answered = {name.decode().lower(): text.decode() for name, text in told[0]["headers"]}
        return Reply(told[0]["status"], answered, b"".join(part.get("body", b"") for part in told[1:]))


@pytest.fixture(scope="module")
def dsn(postgres_server) -> Iterator[str]:
    dsn = postgres_server.create_database()
    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request) -> Any:
    """The half whose Fence, gates and verifiers a test uses."""
    return sinkfence_http if request.param == "wsgi" else aio


@pytest.fixture(params=["postgres", "host", "door"])
def gate(request, kind, tmp_path, dsn) -> Any:
    if request.param == "postgres":
        return (sinkfence_postgres if kind is sinkfence_http else sinkfence_postgres.aio).PostgresSink(dsn)
    return kind.HostGate(tmp_path) if request.param == "host" else kind.DoorOnly()


@pytest.fixture
def job(account) -> str:
    return f"invoice-{account}"


def fenced(kind: Any, gate: Any, verifier: Any, job: str, **more: Any) -> Service:
    replay = gate.replay(1000) if hasattr(gate, "replay") else None
    return Service(kind.Fence(gate, verifier, replay=replay, strict=False, **more), job)


SIGNED = {"k1": known(WORKERS, "workers"), "k2": known(OTHERS, "others")}


def test_a_stranger_s_signature_moves_and_reads_nothing(kind, gate, job):
    """Below the mark, at it, above, of another job, at another service: one and the same 403 for all of them.

    Whether there is a mark, or an answer under the same key, can't be told from it.
    """
    service, sign = fenced(kind, gate, SignedTokens(SIGNED, "ledger"), job), signer(WORKERS)
    forge = signer(STRANGER)
    before = [
        service.ask(forge(Token(job, 7, "a")), idempotency_key="k"),
        service.ask(forge(Token(job, MAX, "x"))),
    ]
    assert service.ask(sign(Token(job, 7, "a")), idempotency_key="k").body == b"secret 1"
    after = [
        service.ask(forged, path, idempotency_key="k")
        for path in ("/", "/.well-known/fencing-arm")
        for forged in (
            *(forge(Token(job, number, owner)) for number in (1, 7, 8, MAX) for owner in ("a", "x")),
            forge(Token("nobody-s", 7, "a")),
            signer(WORKERS, kid="k2")(Token(job, 8, "a")),
            signer(WORKERS, issuer="others")(Token(job, 8, "a")),
            signer(WORKERS, audience="mail")(Token(job, 8, "a")),
        )
    ]
    assert {reply.fencing for reply in after} == {"unauthentic-token"}
    assert len({(reply.status, reply.body, *reply.headers.items()) for reply in (*before, *after)}) == 1
    assert service.runs == 1
    assert service.ask(sign(Token(job, 7, "a"))).fencing == "accepted"


def test_an_unsigned_stranger_moves_and_reads_nothing(kind, gate, job):
    """Who doesn't know the owner gets no mark, and no answer that was kept."""
    current = {job: (7, "a:0f3a")}

    async def ask_async(job_id: str) -> Any:
        return current.get(job_id)

    lookup = AuthorityLookup(current.get) if kind is sinkfence_http else aio.AuthorityLookup(ask_async)
    service = fenced(kind, gate, lookup, job, principal=lambda _: "everybody")
    assert service.ask(format_token(Token(job, 7, "a:0f3a")), idempotency_key="k").body == b"secret 1"
    for path in ("/", "/.well-known/fencing-arm"):
        for number in (1, 6, 7, 8, MAX):
            reply = service.ask(format_token(Token(job, number, "a:0000")), path, idempotency_key="k")
            assert reply.status in {403, 412}
            assert "current" not in f"{reply.headers} {reply.body!r}"
            assert b"0f3a" not in reply.body
    assert service.runs == 1
    assert service.ask(format_token(Token(job, 7, "a:0f3a"))).fencing == "accepted"


@pytest.mark.parametrize("gate", ["postgres", "host"], indirect=True)
def test_one_issuer_is_not_given_what_another_was_answered(kind, gate, job):
    """The same job, owner and key: the principal is who has signed, unless the service says otherwise."""
    service = fenced(kind, gate, SignedTokens(SIGNED, "ledger"), job)
    token = Token(job, 7, "a")
    ours = signer(WORKERS)(token)
    theirs = signer(OTHERS, kid="k2", issuer="others")(token)
    asked = [service.ask(value, idempotency_key="k").body for value in (ours, theirs, ours, theirs)]
    assert asked == [b"secret 1", b"secret 2", b"secret 1", b"secret 2"]


@pytest.mark.parametrize("gate", ["postgres", "host"], indirect=True)
def test_an_endless_body_is_read_to_the_limit(kind, gate, job):
    """Above it nothing more is read, and nothing runs: 413, not memory."""
    service = fenced(kind, gate, TrustedNetwork(), job, principal=lambda _: "everybody")
    endless = iter(lambda: b"x" * 100, None)
    reply = service.ask(format_token(Token(job, 7, "a")), body=endless, idempotency_key="k")
    assert (reply.fencing, service.runs) == ("content-digest-required", 0)
    assert service.read <= 1100


def test_a_long_token_is_not_looked_at(kind, gate, job, monkeypatch):
    """Its length is checked before anything is decoded, and before a signature costs time."""
    verifier = SignedTokens(SIGNED, "ledger")
    monkeypatch.setattr(verifiers, "_json", lambda _: pytest.fail("decoded"))
    reply = fenced(kind, gate, verifier, job).ask("a" * 900 + "." + "b" * 900 + "." + "c" * 900)
    assert reply.fencing == "malformed-token"


HOSTILE = [
    "a\u2028b",
    "a%s%n{0}",
    "a\u202eb",
    "<script>",
    "\u241b[31mred",
    "'; drop table payment --",
]


@pytest.mark.parametrize("job_id", HOSTILE)
def test_a_name_cannot_write_lines_into_a_log(kind, gate, job, caplog, job_id):
    """What is logged of a request is escaped, and one line; what is answered doesn't have the name in it."""
    service = Service(kind.Fence(gate, TrustedNetwork()), job)
    with caplog.at_level(logging.DEBUG, logger="sinkfence"):
        reply = service.ask(format_token(Token(job_id, 7, job_id)))
    assert reply.fencing == "job-mismatch"
    assert job_id.encode() not in reply.body
    for record in caplog.records:
        assert record.getMessage().isprintable()


@pytest.mark.parametrize(
    ("token", "key"),
    [
        ('"a%0d%0aSet-Cookie: x";g=7;o="a"', "k"),
        ('"a%1b[2J";g=7;o="a"', "k"),
        ('"a";g=7;o="a%0a"', "k"),
        ("good", "k\tk"),
        ("good", "k\x1b[2J"),
    ],
)
def test_control_characters_are_refused_without_an_echo(kind, tmp_path, job, token, key):
    """In a job_id, an owner or a key: 400, and nothing of it in the answer."""
    service = fenced(kind, kind.HostGate(tmp_path), TrustedNetwork(), job, principal=lambda _: "everybody")
    token = format_token(Token(job, 7, "a")) if token == "good" else token
    reply = service.ask(token, idempotency_key=key)
    assert reply.status == 400
    assert not {"\r", "\n", "\x1b"} & set("".join(reply.headers.values()))
    assert b"\x1b" not in reply.body
    assert b"Cookie" not in reply.body
    assert service.runs == 0


def test_an_owner_is_compared_in_equal_time(job, monkeypatch):
    """Also where the number is wrong already: the owner is the secret of an unsigned token."""
    compared, equal = [], hmac.compare_digest

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return equal(one, other)

    monkeypatch.setattr(verifiers.hmac, "compare_digest", compare_digest)
    ask = AuthorityLookup({job: (8, "a:0f3a")}.get)
    for number in (8, 9):
        with pytest.raises(sinkfence_http.answers.Refused):
            ask.vouch(Token(job, number, "a:0000"))
    assert compared == [(b"a:0000", b"a:0f3a")] * 2
