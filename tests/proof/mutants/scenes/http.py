"""Scenes at a service's door: a real server, the real middleware, the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any

import httpx
import psycopg
import requests

from mutants.scenes import BASE, Effect, Ground, Scene, begun
from mutants.scenes.shops import Draining, Shop, body_of
from mutants.scenes.tables import Table
from sinkfence.errors import NotEnforced, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_http import Fence, SignedTokens, TrustedNetwork, VerificationKey, aio, asgi, wire, wsgi
from sinkfence_http.calls import Caller
from sinkfence_http.httpx_transport import HttpSink
from sinkfence_http.requests_adapter import FencedAdapter
from sinkfence_http.signer import TokenSigner
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_postgres.aio import PostgresSink as AsyncSink
from sinkfence_trials.torture.proxy import FaultProxy


def takeover(ground: Ground) -> Scene:
    """A, armed from inside the service, posts; B arms at the door; A posts once more."""
    shop = Shop(ground)
    scene = shop.scene
    with shop.open() as url:
        a = shop.table.first_tenure()
        with scene.rightful(a) as attempt:
            shop.post(url, a, attempt)
        b = scene.issued(2, "B")
        with scene.arming(b):
            shop.arm(url, b)
        with scene.late(a) as attempt:
            shop.post(url, a, attempt)
    return scene


def stopped_in_the_handler(ground: Ground) -> Scene:
    """A's request is in its handler, not yet at its transaction; B arms and posts; A's handler goes on."""
    shop = Shop(ground)
    scene = shop.scene
    with shop.open() as url:
        a = scene.issued(1, "A")
        with scene.arming(a):
            shop.arm(url, a)

        def successor() -> None:
            b = scene.issued(2, "B")
            with scene.arming(b):
                shop.arm(url, b)
            with scene.rightful(b) as attempt:
                shop.post(url, b, attempt)

        shop.between.append(successor)
        with scene.late(a) as attempt:
            shop.post(url, a, attempt)
    return scene


def commits_after_answering(ground: Ground, before: bool = False) -> Scene:
    """A handler's answer starts before its transaction commits; B arms in between: the COMMIT is refused."""
    shop = Shop(ground)
    scene = shop.scene
    a, b = scene.issued(1, "A"), scene.issued(2, "B")

    def late(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        token = shop.fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = body_of(environ)
        with psycopg.connect(shop.table.dsn) as conn:
            if before:
                with transaction(conn, token):
                    conn.execute("select 'something else'")
            with transaction(conn, token):
                shop.table.insert(conn, token, attempt)
                start_response("200 OK", [("Content-Length", "4")])
                yield b"done"
                with scene.arming(b):
                    shop.table.sink.arm(b)

    with shop.open(late) as url:
        with scene.arming(a):
            shop.arm(url, a)
        with scene.late(a, also=(OutcomeUnknown,)) as attempt:
            shop.post(url, a, attempt)
    return scene


def commits_once_more_after_answering(ground: Ground) -> Scene:
    """The same, after a transaction that was committed."""
    return commits_after_answering(ground, before=True)


def overtaken(ground: Ground, *, before: bool) -> Scene:
    """B arms in the middle of A's handler, which keeps the refusal of its own transaction to itself."""
    shop = Shop(ground)
    scene = shop.scene
    a, b = scene.issued(1, "A"), scene.issued(2, "B")

    def keeps(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        token = shop.fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = body_of(environ)
        if before:
            shop.table.write(token, attempt)
        with scene.arming(b):
            shop.table.sink.arm(b)
        try:
            shop.table.write(token, attempt)
        except StaleToken:
            start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []

    with shop.open(keeps) as url:
        with scene.arming(a):
            shop.arm(url, a)
        with scene.late(a) as attempt:
            shop.post(url, a, attempt)
    return scene


def overtaken_in_the_handler(ground: Ground) -> Scene:
    """Its one transaction is refused."""
    return overtaken(ground, before=False)


def overtaken_between_two_transactions(ground: Ground) -> Scene:
    """The first is committed, and the second is refused."""
    return overtaken(ground, before=True)


def forged(ground: Ground) -> Scene:
    """Somebody without the key signs a token for itself."""
    shop = Shop(ground)
    scene = shop.scene
    key = VerificationKey(key=b"the workers' key".ljust(32), alg="HS256", issuer="workers")
    shop.fence = Fence(PostgresSink(shop.table.dsn), SignedTokens({"k1": key}, "shop"))
    who = {"kid": "k1", "alg": "HS256", "issuer": "workers", "audience": "shop"}
    forge = TokenSigner(b"a stranger's key".ljust(32), **who)
    stranger = Token(scene.job, BASE + 9, "C:9")
    with shop.open() as url, requests.Session() as session:
        session.trust_env = False
        session.mount(url, FencedAdapter(stranger, sign=forge))
        with scene.late(stranger, also=(requests.HTTPError,)) as attempt:
            session.post(f"{url}/{scene.job}", data=attempt, timeout=30).raise_for_status()
    return scene


def another_job(ground: Ground) -> Scene:
    """A token of another job is posted to this one's route; the handler names its job."""
    shop = Shop(ground)
    scene = shop.scene
    stranger = Token("another", 1, "C:1")
    with shop.open(), scene_of(shop, stranger) as url:
        shop.arm(url, stranger)
        with scene.late(stranger, also=(requests.HTTPError,)) as attempt:
            shop.post(url, stranger, attempt, job=scene.job)
    return scene


@contextmanager
def scene_of(shop: Shop, stranger: Token) -> Generator[str]:
    """Serve a handler that writes for the job of its route, whatever the token is for."""

    def write(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        token = shop.fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = body_of(environ)
        with psycopg.connect(shop.table.dsn) as conn, transaction(conn, token):
            shop.table.insert(conn, Token(shop.scene.job, token.generation, token.owner), attempt)
        start_response("200 OK", [])
        return [b"done"]

    with shop.open(write) as url:
        yield url


def hooked(ground: Ground) -> Scene:
    """B has armed; A arms once more, by a client whose hook raises for the status of each answer."""
    shop = Shop(ground)
    scene = shop.scene

    def for_status(response: httpx.Response) -> None:
        response.raise_for_status()

    with shop.open() as url:
        a, b = scene.issued(1, "A"), scene.issued(2, "B")
        with scene.arming(b):
            shop.arm(url, b)
        hooks = {"response": [for_status]}
        with httpx.Client(event_hooks=hooks, trust_env=False) as client, scene.late(a):
            HttpSink(client, url).arm(a)
    return scene


def no_door(ground: Ground) -> Scene:
    """A service that has never heard of fencing: A is turned back by its own client, before it writes."""
    shop = Shop(ground)
    scene = shop.scene

    def ignorant(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        attempt = body_of(environ)
        if not environ["PATH_INFO"].startswith("/.well-known"):
            token = wire.parse_token(environ["HTTP_FENCING_TOKEN"])
            with psycopg.connect(shop.table.dsn) as conn:
                shop.table.insert(conn, token, attempt)
        start_response("200 OK", [])
        return [b"done"]

    with shop.open(ignorant, fenced=False) as url:
        for generation, owner in ((1, "A"), (2, "B"), (1, "A")):
            token = Token(scene.job, generation, f"{owner}:{generation}")
            try:
                shop.arm(url, token)
                scene.armed(token)
                with scene.writing(token) as attempt:
                    shop.post(url, token, attempt)
            except NotEnforced:
                continue
    return scene


def lost_answer(ground: Ground) -> Scene:
    """A's post is performed, and the connection is cut before the answer; it carries no idempotency key."""
    shop = Shop(ground)
    scene = shop.scene
    a = scene.issued(1, "A")
    with shop.open() as url, FaultProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy:
        with scene.arming(a):
            shop.arm(url, a)
        stop = proxy.stop("reply", 1)

        def post() -> None:
            try:
                with scene.writing(a) as attempt:
                    shop.post(f"http://127.0.0.1:{proxy.address[1]}", a, attempt)
            except OutcomeUnknown:
                pass

        posting = begun(post)
        stop.wait()
        scene.look()
        stop.cut()
        posting.result(30)
    return scene


def failed_after_the_commit(ground: Ground) -> Scene:
    """A posts under a key; its handler commits, and then the server of its mail is down, for this once."""
    shop = Shop(ground)
    scene = shop.scene
    sink = PostgresSink(shop.table.dsn)
    shop.fence = Fence(sink, TrustedNetwork(), replay=sink.replay(), principal=lambda _: "workers")
    statuses = ["502 Bad Gateway"]

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        token = shop.fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        shop.table.write(token, body_of(environ))
        start_response(statuses.pop() if statuses else "200 OK", [("Content-Length", "0")])
        return []

    with shop.open(handle) as url:
        a = scene.issued(1, "A")
        with scene.arming(a):
            shop.arm(url, a)
        with suppress(OutcomeUnknown), scene.writing(a, "pay") as attempt:
            shop.post(url, a, attempt, key="pay")
    return scene


def still_answering(ground: Ground) -> Scene:
    """A's handler works on while its body is read; B arms, and has to wait until the body has ended."""
    gate = Draining()
    fence = Fence(gate, TrustedNetwork())
    effects: list[Effect] = []
    scene = Scene(lambda: effects)
    a, b = scene.issued(1, "A"), scene.issued(2, "B")

    def working(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        token = fence.admit(environ, scene.job)
        start_response("200 OK", [])
        yield b"begun"
        effects.append(Effect(token.generation, token.owner, body_of(environ)))
        yield b"done"

    door = wsgi.FencingMiddleware(working, fence)

    def request(path: str, token: Token, body: str) -> Any:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "HTTP_FENCING_TOKEN": wire.format_token(token),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body.encode()),
        }
        return door(environ, lambda *_: lambda _: None)

    with scene.writing(a) as attempt:
        answer = request("/work", a, attempt)
        assert next(answer) == b"begun"
        arming = begun(request, "/.well-known/fencing-arm", b, "")
        while not (gate.waits.wait(0.005) or arming.done()):
            pass
        if arming.done():
            scene.look()
            scene.armed(b)
        assert next(answer) == b"done"
        scene.look()
        answer.close()
        arming.result(30)
        scene.armed(b)
    return scene


def asynchronous(ground: Ground) -> Scene:
    """The ASGI door: A arms and posts; B arms; A posts once more."""
    table = Table(ground)
    scene = table.scene
    fence = aio.Fence(AsyncSink(table.dsn), TrustedNetwork())

    async def handle(scope: dict[str, Any], receive: Any, send: Any) -> None:
        token = await fence.admit(scope, scene.job)
        table.write(token, scope["query_string"].decode())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    door = asgi.FencingMiddleware(handle, fence)

    def request(path: str, token: Token, attempt: str = "") -> None:
        """Send one, and understand the answer as a caller does."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": attempt.encode(),
            "headers": [(b"fencing-token", wire.format_token(token).encode())],
        }
        asyncio.run(door(scope, receive, send))
        said = {name.decode().title(): value.decode() for name, value in sent[0]["headers"]}
        pause = Caller(token, None).begin("POST", None, rewindable=True).answered(sent[0]["status"], said)
        assert pause is None, "the answer stands"

    a = table.first_tenure()
    with scene.rightful(a) as attempt:
        request("/work", a, attempt)
    b = scene.issued(2, "B")
    with scene.arming(b):
        request("/.well-known/fencing-arm", b)
    with scene.late(a) as attempt:
        request("/work", a, attempt)
    return scene
