"""What is imported, and what a Fence and its middleware can be made of."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.responses import FileResponse

import sinkfence_http
from sinkfence import (
    GenerationConflict,
    JobMismatch,
    MissingToken,
    NotArmed,
    OutcomeUnknown,
    StaleToken,
    Token,
)
from sinkfence_http import TrustedNetwork, aio, asgi, bodies, wsgi
from sinkfence_http.answers import Refused
from sinkfence_http.passage import PASSAGE, Passage

SPEC = importlib.util.spec_from_file_location(
    "memory_gate", Path(__file__).parent / "services" / "memory_gate.py"
)
memory_gate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(memory_gate)

TOKEN = Token("invoice-42", 7, "a")


@pytest.fixture
def gate():
    return memory_gate.MemoryGate()


def test_the_receiving_half_needs_the_standard_library_only():
    """Everything but the halves for requests and httpx is imported without loading a third-party module."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import sinkfence_http, sinkfence_http.calls, sinkfence_http.transports, sinkfence_http.frameworks\n"
        "import sinkfence_http.aio, sinkfence_http.asgi, sinkfence_http.wsgi\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(names - set(sys.stdlib_module_names) - {'sinkfence', 'sinkfence_http'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_wrong_kind_of_gate_says_which_to_use(gate):
    """A sync gate goes with Fence and WSGI, an async one with aio.Fence and ASGI: TypeError."""
    sync, trust = gate, TrustedNetwork()
    other = memory_gate.AsyncMemoryGate(gate)
    with pytest.raises(TypeError, match=r"sinkfence_postgres.aio.PostgresSink"):
        aio.Fence(sync, trust)
    with pytest.raises(TypeError, match=r"sinkfence_http.aio.Fence"):
        sinkfence_http.Fence(other, trust)
    with pytest.raises(TypeError, match=r"sinkfence_http.aio.Fence"):
        asgi.FencingMiddleware(None, sinkfence_http.Fence(sync, trust))
    with pytest.raises(TypeError, match=r"sinkfence_http.Fence"):
        wsgi.FencingMiddleware(None, aio.Fence(other, trust))
    with pytest.raises(TypeError, match="gate"):
        sinkfence_http.Fence(None, trust)
    with pytest.raises(TypeError, match="verifier"):
        sinkfence_http.Fence(sync, None)


def test_admit_compares_the_job_and_hands_out_the_token(gate):
    """The token for its own job, JobMismatch for another, MissingToken without one, sync and async alike."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())
    environ = {PASSAGE: Passage(TOKEN, fence, memory_gate.Watch(), None)}
    assert fence.admit(environ, "invoice-42") is TOKEN
    with pytest.raises(JobMismatch):
        fence.admit(environ, "invoice-43")
    with pytest.raises(MissingToken):
        fence.admit({}, "invoice-42")
    with pytest.raises(TypeError):
        fence.admit(environ, 42)
    twin = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    assert asyncio.run(twin.admit(environ, "invoice-42")) is TOKEN
    with pytest.raises(JobMismatch):
        asyncio.run(twin.admit(environ, "invoice-43"))


def test_a_mismatch_that_the_handler_got_over_is_not_held_against_it(gate):
    """It has tried one name, then the right one: what it answers of its own accord goes out."""
    passage = Passage(TOKEN, sinkfence_http.Fence(gate, TrustedNetwork()), memory_gate.Watch(), None)
    with pytest.raises(JobMismatch):
        passage.admit("invoice-43")
    assert passage.judge(503).slug == "job-mismatch"
    passage.admit("invoice-42")
    assert passage.judge(503) is None


def test_a_websocket_is_refused_before_it_is_accepted(gate):
    """One handshake can't vouch for what follows: closed unless the route is exempt."""
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    fence = aio.Fence(memory_gate.AsyncMemoryGate(gate), TrustedNetwork())
    door = asgi.FencingMiddleware(app, fence, exempt=lambda scope: scope["path"] == "/open")
    for path in ("/socket", "/open"):
        asyncio.run(door({"type": "websocket", "path": path, "headers": []}, receive, send))
    assert reached == ["/open"]
    assert [message["type"] for message in sent] == ["websocket.close"]


def environ(method="POST", **more):
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/",
        "HTTP_FENCING_TOKEN": '"invoice-42";g=7;o="a"',
        **more,
    }


def test_a_wsgi_gate_is_held_until_the_body_is_closed(gate):
    """The gate is left when the server closes the response, read to its end or not, and not before."""
    closed = []

    class Body:
        def __iter__(self):
            yield b"x"

        def close(self):
            closed.append(list(gate.entered))

    fence = sinkfence_http.Fence(gate, TrustedNetwork(), strict=False)

    def app(env, start_response):
        start_response("200 OK", [])
        return Body()

    response = wsgi.FencingMiddleware(app, fence)(environ(), lambda *a: None)
    assert gate.entered == [TOKEN]
    response.close()
    assert gate.entered == []
    assert closed == [[TOKEN]]  # the application's own close ran inside


def test_the_write_callable_of_wsgi_is_fenced_too(gate):
    """What an application writes by the old callable is judged as a body is."""
    started, written = [], []

    def start_response(status, headers, exc_info=None):
        started.append((status, dict(headers)["Fencing-Status"]))
        return written.append

    def app(env, start):
        start("200 OK", [])(b"done")
        return []

    for strict, status in ((False, "200 OK"), (True, "500 Internal Server Error")):
        fence = sinkfence_http.Fence(gate, TrustedNetwork(), strict=strict)
        response = wsgi.FencingMiddleware(app, fence)(environ(), start_response)
        body = b"".join(response)
        response.close()
        assert started.pop()[0] == status
        assert b"done" not in body
    assert written == [b"done"]


def test_the_same_fence_twice_is_one_door(gate):
    """Mounted on an application and on a part of it, the fence is passed once."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def app(env, start_response):
        token = fence.admit(env, "invoice-42")
        with gate.transaction(token):
            start_response("200 OK", [])
        return [b"done"]

    seen = []
    door = wsgi.FencingMiddleware(wsgi.FencingMiddleware(app, fence), fence)
    response = door(environ(), lambda status, headers, *a: seen.append((status, headers)))
    assert list(response) == [b"done"]
    response.close()
    assert seen == [("200 OK", [("Fencing-Status", "accepted")])]


def test_a_refusal_behind_another_error_is_heard(gate):
    """What a framework raises in a refusal's place would be a 500: the caller is told the refusal."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def app(env, start_response):
        token = fence.admit(env, "invoice-42")
        try:
            with gate.transaction(token):
                gate.marks.arm(Token("invoice-42", 8, "b"))
        except StaleToken:
            raise RuntimeError("the view has failed") from None

    seen = answers(wsgi.FencingMiddleware(app, fence))
    assert dict(seen[0][1])["Fencing-Status"] == "stale-token;current=8"


def test_a_refusal_of_another_token_is_not_the_caller_s(gate):
    """A StaleToken of a service that the handler calls itself must not end its caller's lease."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def app(env, start_response):
        raise StaleToken(Token("elsewhere", 3, "x"), 4)

    with pytest.raises(StaleToken):
        wsgi.FencingMiddleware(app, fence)(environ(), lambda *a: None)
    assert gate.entered == []


def answers(door):
    """Serve one request, and return what the server's start_response was called with."""
    seen = []
    response = door(environ(), lambda *answer: seen.append(answer))
    list(response)
    assert len(seen) == 1
    return seen


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (StaleToken(TOKEN, 8), "412", "stale-token;current=8"),
        (ExceptionGroup("one", [StaleToken(TOKEN, 8)]), "412", "stale-token;current=8"),
        (GenerationConflict(TOKEN, 7), "412", "generation-conflict;current=7"),
        (JobMismatch(TOKEN, "swordfish"), "403", "job-mismatch"),
        (NotArmed(TOKEN, 6), "503", "fence-unavailable"),
        (OutcomeUnknown(), "409", "outcome-unknown"),
    ],
)
def test_what_a_handler_raises_becomes_its_refusal(gate, error, status, word):
    """Each refusal of a guarded transaction has its answer; what is none is raised on."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())
    seen = []

    def app(env, start_response):
        raise error

    response = wsgi.FencingMiddleware(app, fence)(environ(), lambda *answer: seen.append(answer))
    assert b"swordfish" not in b"".join(response)
    response.close()
    assert seen[0][0].startswith(status)
    assert dict(seen[0][1])["Fencing-Status"] == word
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (StaleToken(TOKEN, 8), "412", "stale-token;current=8;applied"),
        (GenerationConflict(TOKEN, 7), "412", "generation-conflict;current=7;applied"),
        (JobMismatch(TOKEN), "409", "outcome-unknown"),
        (NotArmed(TOKEN, 6), "409", "outcome-unknown"),
        (
            ExceptionGroup("two", [NotArmed(TOKEN, 6), StaleToken(TOKEN, 8)]),
            "412",
            "stale-token;current=8;applied",
        ),
    ],
)
def test_no_answer_denies_what_was_committed(gate, error, status, word):
    """After one guarded COMMIT a refusal of the rest must not be taken for one of the whole, and repeated."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def app(env, start_response):
        with gate.transaction(fence.admit(env, "invoice-42")):
            pass
        raise error

    seen = answers(wsgi.FencingMiddleware(app, fence))
    assert seen[0][0].startswith(status)
    assert dict(seen[0][1])["Fencing-Status"] == word


@pytest.mark.parametrize("status", [200, 204, 300, 301, 302, 303, 304, 307, 308, 400, 404, 412, 500])
def test_whatever_a_caller_takes_for_a_success_is_judged(gate, status):
    """A 2xx or a redirect vouches for an effect; one that asks for the write once more doesn't."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def app(env, start_response):
        start_response(f"{status} X", [])
        return []

    judged = status < 400 and status not in (307, 308)
    seen = answers(wsgi.FencingMiddleware(app, fence))
    assert dict(seen[0][1])["Fencing-Status"] == ("not-guarded" if judged else "accepted")


@pytest.mark.parametrize(
    ("job_id", "error", "word"),
    [
        ("invoice-42", None, "accepted"),
        ("invoice-43", None, "job-mismatch"),
        ("invoice-42", StaleToken(TOKEN, 8), "stale-token;current=8"),
        (None, None, "not-guarded"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_wsgi_server_may_read_the_head_when_the_application_returns(gate, job_id, error, word, lazy):
    """The server is given the answer's head before its body, be it made at once or as it is read."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork())

    def handle(env):
        if job_id is not None:
            with gate.transaction(fence.admit(env, job_id)):
                pass
        if error is not None:
            raise error
        yield b"done"

    def app(env, start_response):
        start_response("200 OK", [])
        return handle(env) if lazy else list(handle(env))

    seen = []
    response = wsgi.FencingMiddleware(app, fence)(environ(), lambda *answer: seen.append(answer))
    assert dict(seen[0][1])["Fencing-Status"] == word.replace("current=8", "current=8;applied")
    list(response)
    assert len(seen) == 1
    assert gate.entered == []


def test_a_websocket_over_wsgi_is_refused(gate):
    """It begins as a GET, and is no safe request: refused with a token and without, unless exempt."""
    fence, reached, seen = sinkfence_http.Fence(gate, TrustedNetwork()), [], []

    def app(env, start_response):
        reached.append(env["PATH_INFO"])
        return []

    door = wsgi.FencingMiddleware(app, fence, exempt=lambda env: env["PATH_INFO"] == "/open")
    upgrade = {"HTTP_UPGRADE": "WebSocket", "HTTP_CONNECTION": "Upgrade"}
    for path in ("/socket", "/open"):
        door(environ("GET", PATH_INFO=path, **upgrade), lambda *answer: seen.append(answer))
    assert reached == ["/open"]
    assert [status for status, _ in seen] == ["428 Precondition Required"]


def test_a_door_that_does_not_know_whether_it_armed_is_unavailable(gate):
    """An outcome that is unknown at the door is no effect of the request: 503, and repeated."""
    gate.broken = OutcomeUnknown()
    seen = []
    fence = sinkfence_http.Fence(gate, TrustedNetwork())
    wsgi.FencingMiddleware(None, fence)(environ(), lambda *answer: seen.append(answer))
    assert seen[0][0].startswith("503")


def test_a_wsgi_gate_is_left_by_a_server_that_does_not_close(gate):
    """At the end of the body the gate is left, in this thread, even where the server never calls close()."""
    fence = sinkfence_http.Fence(gate, TrustedNetwork(), strict=False)

    def app(env, start_response):
        start_response("200 OK", [])
        return [b"done"]

    response = wsgi.FencingMiddleware(app, fence)(environ(), lambda *a: None)
    assert next(response) == b"done"
    assert gate.entered == [TOKEN]
    assert list(response) == []
    assert gate.entered == []


def test_a_content_length_of_thousands_of_digits():
    """No body is that long: it is refused as a bad request, and is no trouble of the fence's own."""
    with pytest.raises(Refused) as refused:
        bodies.read({"CONTENT_LENGTH": "9" * 5000, "wsgi.input": io.BytesIO()}, 100)
    assert refused.value.answer.status == 400


@pytest.mark.parametrize("key", [b"k", None], ids=["kept", "not-kept"])
def test_a_file_that_an_asgi_server_would_send_itself_is_kept(tmp_path, key):
    """Of an answer that is to be kept each byte must come by here: only others are sent by the server."""
    gate = aio.HostGate(tmp_path / "gate")
    fence = aio.Fence(gate, TrustedNetwork(), replay=gate.replay(), principal=lambda scope: "ann")
    offered = {"http.response.pathsend": {}, "http.response.zerocopysend": {}, "http.response.debug": {}}
    (tmp_path / "receipt").write_bytes(b"9 euros")

    async def app(scope, receive, send):
        await fence.admit(scope, "invoice-42")
        await FileResponse(tmp_path / "receipt")(scope, receive, send)

    async def ask() -> list[dict]:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [(b"fencing-token", b'"invoice-42";g=7;o="a"')],
            "extensions": offered,
        }
        if key:
            scope["headers"].append((b"idempotency-key", key))
        sent, body = [], [{"type": "http.request"}]

        async def receive():
            return body.pop() if body else await asyncio.Future()

        async def send(message):
            sent.append(message)

        await asgi.FencingMiddleware(app, fence)(scope, receive, send)
        assert len(offered) == 3
        assert list(scope["extensions"])[-1] == "http.response.debug"
        return sent

    (first, again) = (asyncio.run(ask()) for _ in range(2))
    for answer, word in ((first, b"accepted"), (again, b"accepted;replayed" if key else b"accepted")):
        assert dict(answer[0]["headers"])[b"fencing-status"] == word
        if key:
            assert b"".join(each.get("body", b"") for each in answer) == b"9 euros"
        else:
            assert answer[1]["type"] == "http.response.pathsend"
