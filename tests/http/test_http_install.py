"""A fence before a framework's application, in this process: what becomes of errors, what stands around."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from pathlib import Path

import django
import flask
import httpx
import pytest
import werkzeug.test
from django.conf import settings as django_settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse as DjangoResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from sinkfence import StaleToken, Token
from sinkfence_http import Fence, TrustedNetwork, aio, asgi, wire
from sinkfence_http.frameworks import install
from sinkfence_http.httpx_transport import (
    AsyncFencedTransport,
    AsyncHttpSink,
    FencedTransport,
    HttpSink,
)

SPEC = importlib.util.spec_from_file_location(
    "memory_gate", Path(__file__).parent / "services" / "memory_gate.py"
)
memory_gate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(memory_gate)

TOKEN = Token("account-17", 8, "b:1")
HEADERS = {"Fencing-Token": wire.format_token(TOKEN)}
REFUSALS = "sinkfence_http.frameworks.DjangoRefusals"
FENCED = "/work", "/stale", "/elsewhere", "/bug", "/hooks/work"


def exempt(request):
    return request.get("path", request.get("PATH_INFO")).startswith("/hooks/")


def what(path, gate, token):
    """What every handler here does, admitted."""
    if path == "/stale":  # of a destination that the door's gate knows nothing of, as S3
        raise StaleToken(token, 9)
    if path == "/elsewhere":  # of a service that this one calls, with a lease of its own
        raise StaleToken(Token("mail", 3, "us"), 4)
    if path == "/bug":
        raise RuntimeError("a bug")
    with gate.transaction(token):
        pass
    return "done"


def starlette_app(gate):
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())

    async def handle(request):
        return PlainTextResponse(what(request.url.path, gate, await fence.admit(request.scope, "account-17")))

    app = Starlette(routes=[Route(path, handle, methods=["POST"]) for path in FENCED])
    return install(app, fence, exempt=exempt)


def fastapi_app(gate, installed):
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    app = FastAPI()
    if installed:
        install(app, fence, exempt=exempt)
    else:
        app.add_middleware(asgi.FencingMiddleware, fence=fence, exempt=exempt)

    async def caller(request: Request) -> Token:
        return await fence.admit(request.scope, "account-17")

    for path in FENCED:

        @app.post(path)
        def handle(request: Request, token=Depends(caller)):  # noqa: B008
            return what(request.url.path, gate, token)

    return app


def flask_app(gate):
    fence = Fence(gate, TrustedNetwork())
    app = flask.Flask("orders")

    def handle():
        return what(flask.request.path, gate, fence.admit(flask.request.environ, "account-17"))

    for path in FENCED:
        app.add_url_rule(path, path, handle, methods=["POST"])
    return install(app, fence, exempt=exempt)


def django_urls(handle):
    return override_settings(ROOT_URLCONF=tuple(django_path(path[1:], handle) for path in FENCED))


@pytest.fixture(scope="module")
def configured():
    """Django's settings, which a process has once."""
    if not django_settings.configured:
        django_settings.configure(ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)
        django.setup()
    with override_settings(MIDDLEWARE=["django.middleware.common.CommonMiddleware", REFUSALS]):
        yield


@pytest.fixture
def gate():
    return memory_gate.MemoryGate()


@pytest.fixture(params=["starlette", "fastapi", "fastapi-add_middleware", "flask", "django", "async-django"])
def send(request, gate, configured):
    """Return a function that posts to one framework's application, and returns status and Fencing-Status."""

    def of_wsgi(app):
        client = werkzeug.test.Client(app)
        return lambda path, headers=HEADERS: said(client.post(path, headers=headers, buffered=True))

    def of_asgi(app):
        client = TestClient(app, raise_server_exceptions=False)
        return lambda path, headers=HEADERS: said(client.post(path, headers=headers))

    match request.param:
        case "starlette":
            yield of_asgi(starlette_app(gate))
        case "fastapi" | "fastapi-add_middleware":
            yield of_asgi(fastapi_app(gate, request.param == "fastapi"))
        case "flask":
            yield of_wsgi(flask_app(gate))
        case "django":
            fence = Fence(gate, TrustedNetwork())

            def handle(request):
                token = fence.admit(request.environ, "account-17")
                return DjangoResponse(what(request.path, gate, token))

            with django_urls(handle):
                yield of_wsgi(install(get_wsgi_application(), fence, exempt=exempt))
        case "async-django":
            async_fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())

            async def handle_async(request):
                token = await async_fence.admit(request.scope, "account-17")
                return DjangoResponse(what(request.path, gate, token))

            with django_urls(handle_async):
                yield of_asgi(install(get_asgi_application(), async_fence, exempt=exempt))


def said(response):
    return response.status_code, response.headers.get("Fencing-Status")


def test_a_write_that_was_checked_passes(send):
    """One authentic token, admitted and guarded: the application's own answer."""
    assert send("/work") == (200, "accepted")


def test_without_a_token_nothing_runs(send, gate):
    """428 at the door."""
    assert send("/work", {}) == (428, "token-required")
    assert gate.effects == []


def test_a_refusal_by_another_destination_is_told(send):
    """StaleToken raised by a sink that the gate doesn't watch is a 412 as well."""
    assert send("/stale") == (412, "stale-token;current=9")


@pytest.mark.parametrize("path", ["/elsewhere", "/bug"])
def test_an_error_that_is_no_refusal_of_the_caller_stays_the_application_s(send, path):
    """Another job's StaleToken is none of the caller's, which would take its own lease for lost."""
    status, fencing = send(path)
    assert status == 500
    assert fencing in ("accepted", None)


def test_an_exempt_handler_that_admits_asks_for_a_token(send, gate):
    """It is the caller that can do something about it: 428, and not a 500."""
    assert send("/hooks/work") == (428, "token-required")
    assert send("/hooks/work", {}) == (428, "token-required")
    assert gate.effects == []


def test_a_blueprint_s_own_handler_makes_no_success_of_a_refusal(gate):
    """Flask asks it before the application's: the caller hears of its successor whatever it answers."""
    fence = Fence(gate, TrustedNetwork())
    part = flask.Blueprint("part", "part")
    part.errorhandler(Exception)(lambda error: {"error": type(error).__name__})

    def handle():
        return what(flask.request.path, gate, fence.admit(flask.request.environ, "account-17"))

    for path in FENCED:
        part.add_url_rule(path, path, handle, methods=["POST"])
    app = flask.Flask("orders")
    app.register_blueprint(part)
    client = werkzeug.test.Client(install(app, fence))
    for path, answer in (
        ("/stale", (412, "stale-token;current=9")),
        ("/elsewhere", (500, "not-guarded")),  # another's refusal, and nothing was committed
        ("/work", (200, "accepted")),
    ):
        assert said(client.post(path, headers=HEADERS, buffered=True)) == answer


def test_a_stale_owner_is_no_error_of_the_service(send, caplog):
    """No traceback in the log, and no mail to Django's admins, for what was refused in order."""
    send("/stale")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_what_is_wrong_is_said_at_once(gate, configured):
    """Each application takes its kind of fence; what is none of these applications is told what to do."""
    sync, async_ = (
        Fence(gate, TrustedNetwork()),
        aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork()),
    )
    for app, fence in (
        (FastAPI(), sync),
        (flask.Flask("orders"), async_),
        (get_wsgi_application(), async_),
        (get_asgi_application(), sync),
    ):
        with pytest.raises(TypeError, match="takes a sinkfence_http"):
            install(app, fence)

    async def exempts(_):
        return False

    for app, fence in ((FastAPI(), async_), (flask.Flask("orders"), sync)):
        with pytest.raises(TypeError, match="exempt is a plain function"):
            install(app, fence, exempt=exempts)
    with pytest.raises(TypeError, match="put the FencingMiddleware"):
        install(lambda environ, start_response: [], sync)
    with override_settings(MIDDLEWARE=[]), pytest.raises(ValueError, match="last in MIDDLEWARE"):
        install(get_wsgi_application(), sync)


def test_django_s_test_client_goes_round_the_door(gate, configured):
    """It calls the views and not the application that is served: a write has no token there, and says so."""
    from django.test import Client

    fence = Fence(gate, TrustedNetwork())
    with django_urls(lambda request: DjangoResponse(fence.admit(request.environ, "account-17"))):
        assert said(Client().post("/work", headers=HEADERS)) == (428, "token-required")


def test_a_caller_and_a_service_in_one_process(gate):
    """Any transport of httpx may stand under the fenced one: so both halves are tested without a network."""
    under = httpx.WSGITransport(app=flask_app(gate))
    with httpx.Client(transport=FencedTransport(TOKEN, transport=under)) as client:
        HttpSink(client, "http://orders").arm(TOKEN)
        assert client.post("http://orders/work").text == "done"
        with pytest.raises(StaleToken):
            client.post("http://orders/stale")

    async def on_a_loop():
        under = httpx.ASGITransport(app=starlette_app(gate))
        async with httpx.AsyncClient(transport=AsyncFencedTransport(TOKEN, transport=under)) as client:
            await AsyncHttpSink(client, "http://orders").arm(TOKEN)
            assert (await client.post("http://orders/work")).text == "done"

    asyncio.run(on_a_loop())
    assert gate.effects == [("account-17", 8)] * 2


def cors(app):
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://shop.example"],
        allow_methods=["POST"],
        allow_headers=["Fencing-Token", "Idempotency-Key"],
        expose_headers=["Fencing-Status", "Retry-After"],
    )
    return TestClient(app)


def test_a_browser_of_another_origin(gate):
    """With CORSMiddleware outside a preflight passes, and refusals of the door can be read as well."""
    client = cors(starlette_app(gate))
    origin = {"Origin": "https://shop.example"}
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "fencing-token,idempotency-key",
    }
    preflight = client.options("/work", headers={**origin, **asks})
    assert preflight.status_code == 200
    assert "Fencing-Token" in preflight.headers["Access-Control-Allow-Headers"]
    for headers, status in (HEADERS, 200), ({}, 428):
        answer = client.post("/work", headers={**origin, **headers})
        assert answer.status_code == status
        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert "Fencing-Status" in answer.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("outside", [True, False])
def test_base_http_middleware_on_either_side(gate, outside):
    """Starlette's own kind of middleware passes the scope, the errors and the answers on."""
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())

    async def handle(request):
        token = await fence.admit(request.scope, "account-17")
        return PlainTextResponse(what(request.url.path, gate, token))

    async def through(request, call_next):
        return await call_next(request)

    app = Starlette(routes=[Route(path, handle, methods=["POST"]) for path in FENCED])
    if not outside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=through)
    install(app, fence)
    if outside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=through)
    client = TestClient(app, raise_server_exceptions=False)
    assert said(client.post("/work", headers=HEADERS)) == (200, "accepted")
    assert said(client.post("/stale", headers=HEADERS)) == (412, "stale-token;current=9")


@pytest.mark.parametrize("root_path", ["", "/api"])
def test_a_part_that_is_fenced_by_itself(gate, root_path):
    """A mounted application has its own door, armed below its own address; the rest needs no token."""
    part = starlette_app(gate)

    async def free(request):
        return PlainTextResponse("free")

    app = Starlette(routes=[Mount("/part", part), Route("/free", free, methods=["POST"])])
    client = TestClient(app, root_path=root_path, raise_server_exceptions=False)
    assert client.post(f"{root_path}/free").text == "free"
    assert said(client.post(f"{root_path}/part/.well-known/fencing-arm", headers=HEADERS)) == (204, "armed")
    assert said(client.post(f"{root_path}/part/work")) == (428, "token-required")


def test_a_mounted_part_behind_the_whole_s_door(gate):
    """FastAPI's sub-applications have a 500 of their own, and what the gate has seen is told in its place."""
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    app, part = FastAPI(), FastAPI()
    app.mount("/part", part)
    install(app, fence)

    @part.post("/work")
    async def work(request: Request) -> str:
        token = await fence.admit(request.scope, "account-17")
        with gate.transaction(token):
            gate.marks.arm(Token("account-17", 9, "c:1"))
        return "done"

    client = TestClient(app, raise_server_exceptions=False)
    assert said(client.post("/part/work", headers=HEADERS)) == (412, "stale-token;current=9")


def background_app(gate, *, before):
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    app = install(FastAPI(), fence)

    async def caller(request: Request) -> Token:
        return await fence.admit(request.scope, "account-17")

    def later(token: Token) -> None:
        if before:
            gate.marks.arm(Token("account-17", 9, "c:1"))
        with gate.transaction(token):
            pass

    @app.post("/work")
    def work(tasks: BackgroundTasks, token=Depends(caller)) -> str:  # noqa: B008
        if before:
            with gate.transaction(token):
                pass
        tasks.add_task(later, token)
        return "done"

    return TestClient(app, raise_server_exceptions=False)


def test_work_in_a_background_task_alone_is_no_success(gate):
    """It runs after the answer: strict says not-guarded. The effect stands, as its caller is told it may."""
    answer = background_app(gate, before=False).post("/work", headers=HEADERS)
    assert said(answer) == (500, "not-guarded")
    assert gate.effects == [("account-17", 8)]


def test_a_background_task_is_fenced_and_its_refusal_goes_to_the_log(gate, caplog):
    """What the handler has committed is answered; the task is overtaken, and can't tell its caller."""
    answer = background_app(gate, before=True).post("/work", headers=HEADERS)
    assert said(answer) == (200, "accepted")
    assert gate.effects == [("account-17", 8)]
    assert "stale-token came after the response had started" in caplog.text


def yielding_app(gate, scope, *, overtaken=False):
    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    app = install(FastAPI(), fence)

    async def guarded(request: Request):
        token = await fence.admit(request.scope, "account-17")
        with gate.transaction(token):
            yield
            if overtaken:
                gate.marks.arm(Token("account-17", 9, "c:1"))

    @app.post("/work")
    def work(session=Depends(guarded, scope=scope)) -> str:  # noqa: B008
        return "done"

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_dependency_that_commits_after_the_answer_is_no_success(gate, overtaken):
    """Whether its COMMIT will be refused is not known when the answer starts: 500 not-guarded, never 200."""
    answer = yielding_app(gate, "request", overtaken=overtaken).post("/work", headers=HEADERS)
    assert said(answer) == (500, "not-guarded")
    assert gate.effects == ([] if overtaken else [("account-17", 8)])


def test_a_dependency_that_commits_before_the_answer_is_one(gate):
    """FastAPI ends a dependency of scope "function" with its handler: the COMMIT is known, refused or not."""
    answer = yielding_app(gate, "function").post("/work", headers=HEADERS)
    assert said(answer) == (200, "accepted")
    answer = yielding_app(gate, "function", overtaken=True).post("/work", headers=HEADERS)
    assert said(answer) == (412, "stale-token;current=9")
    assert gate.effects == [("account-17", 8)]
