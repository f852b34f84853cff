"""Gates and verifiers behind both doors, called as a server calls them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sinkfence_http
import sinkfence_postgres
import sinkfence_postgres.aio
from sinkfence import (
    GenerationConflict,
    IdempotencyMismatch,
    JobMismatch,
    MissingToken,
    NotArmed,
    StaleToken,
    Token,
)
from sinkfence_http import AuthorityLookup, DoorOnly, HostGate, TrustedNetwork, aio, asgi, wsgi
from sinkfence_http.answers import KEY_REQUIRED, Refused
from sinkfence_http.wire import format_token
from sinkfence_postgres import install

JOB = "invoice-42"


def token(generation: int = 7, owner: str = "a", job_id: str = JOB) -> Token:
    return Token(job_id, generation, owner)


@dataclass
class Reply:
    status: int
    fencing: str | None
    body: bytes
    headers: dict[str, str]


Handler = Callable[[Callable[[str], Token]], Any]


class Door:
    """One of the two doors, before a handler that is given the fence's `admit` and returns a status."""

    def __init__(self, kind: str, gate: Any, verifier: Any = None, **more: Any) -> None:
        self.handler: Handler = lambda admit: 200
        self.ran = 0
        exempt = more.pop("exempt", None)
        self._wsgi = kind == "wsgi"
        if self._wsgi:
            self.fence: Any = sinkfence_http.Fence(gate, verifier or TrustedNetwork(), **more)
            self._door: Any = wsgi.FencingMiddleware(self._serve_wsgi, self.fence, exempt=exempt)
        else:
            self.fence = aio.Fence(gate, verifier or TrustedNetwork(), **more)
            self._door = asgi.FencingMiddleware(self._serve_asgi, self.fence, exempt=exempt)

    def ask(self, shown: Token | None = None, **headers: str) -> Reply:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if shown is not None:
            fields["Fencing-Token"] = format_token(shown)
        return self._ask_wsgi(fields) if self._wsgi else asyncio.run(self._ask_asgi(fields))

    def arm(self, shown: Token) -> Reply:
        self.path = "/.well-known/fencing-arm"
        try:
            return self.ask(shown)
        finally:
            self.path = "/"

    path = "/"
    method = "POST"

    def _serve_wsgi(self, environ: Any, start: Any) -> Any:
        self.ran += 1
        status = self.handler(lambda job: self.fence.admit(environ, job))
        start(f"{status} Said", [("Content-Length", "2")])
        return [b"ok"]

    async def _serve_asgi(self, scope: Any, receive: Any, send: Any) -> None:
        self.ran += 1

        def admit(job: str) -> Token:
            coroutine = self.fence.admit(scope, job)
            try:
                coroutine.send(None)
            except StopIteration as done:
                return done.value
            raise AssertionError

        status = self.handler(admit)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def _ask_wsgi(self, fields: dict[str, str]) -> Reply:
        import io

        told: list[Any] = []
        environ = {
            "REQUEST_METHOD": self.method,
            "PATH_INFO": self.path,
            "wsgi.input": io.BytesIO(),
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in fields.items()},
        }
        answer = self._door(environ, lambda *head: told.append(head))
        body = b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        headers = dict(told[-1][1])
        return Reply(int(told[-1][0][:3]), headers.get("Fencing-Status"), body, headers)

    async def _ask_asgi(self, fields: dict[str, str]) -> Reply:
        told: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            told.append(message)

        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
        }
        await self._door(scope, receive, send)
        headers = {name.decode().title(): value.decode() for name, value in told[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in told[1:])
        return Reply(told[0]["status"], headers.get("Fencing-Status"), body, headers)


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request) -> str:
    return request.param


def gate_of(kind: str, name: str, folder: Path) -> Any:
    source = sinkfence_http if kind == "wsgi" else aio
    return source.DoorOnly() if name == "door" else source.HostGate(folder, drain_timeout=0)


@pytest.fixture(params=["host", "door"])
def gate(request, kind, tmp_path) -> Any:
    return gate_of(kind, request.param, tmp_path)


def admits(admit: Callable[[str], Token]) -> int:
    admit(JOB)
    return 200


def raises(error: Exception, *, first: bool = True) -> Handler:
    def handler(admit: Callable[[str], Token]) -> int:
        if first:
            admit(JOB)
        raise error

    return handler


def test_a_handler_that_admits_is_all_that_these_gates_ask_for(kind, gate):
    """They see no commit: a success whose handler has admitted goes out, another is not-guarded."""
    door = Door(kind, gate)
    assert (door.ask(token()).status, door.ask(token()).fencing) == (500, "not-guarded")
    door.handler = admits
    assert (door.ask(token()).status, door.ask(token()).fencing) == (200, "accepted")
    loose = Door(kind, gate, strict=False)
    assert loose.ask(token()).fencing == "accepted"


def test_the_marks_of_these_gates(kind, gate):
    """Numbers are compared, the owner is kept, and a stale one is refused at the door."""
    door = Door(kind, gate)
    door.handler = admits
    for shown, word in [
        (token(9), "accepted"),
        (token(10), "accepted"),
        (token(9), "stale-token;current=10"),
        (token(10, "b"), "generation-conflict;current=10"),
        (token(10), "accepted"),
        (token(1, job_id="invoice-43"), "job-mismatch"),
    ]:
        assert door.ask(shown).fencing == word
    assert door.arm(token(12)).fencing == "armed"
    assert door.ask(token(11)).fencing == "stale-token;current=12"


def test_a_door_only_forgets_with_its_process(kind):
    """It is no fence: another process, or the next one, knows nothing of what this one has seen."""
    source = sinkfence_http if kind == "wsgi" else aio
    first, second = Door(kind, source.DoorOnly()), Door(kind, source.DoorOnly())
    first.handler = second.handler = admits
    assert first.ask(token(8)).status == 200
    assert second.ask(token(7)).status == 200


def test_a_newer_owner_that_finds_an_older_one_inside_comes_again(tmp_path, kind):
    """The answer is 503 with Retry-After, and nothing of the newer one is run."""
    door = Door(kind, gate_of(kind, "host", tmp_path))
    door.handler = admits
    assert door.ask(token(7)).status == 200
    with HostGate(tmp_path).enter(token(7)):
        reply = door.ask(token(8))
        assert (reply.status, reply.fencing) == (503, "previous-owner-in-flight")
        assert int(reply.headers["Retry-After"]) > 0
        assert door.ran == 1
    assert door.ask(token(8)).status == 200


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (StaleToken(token(), 9), 412, "stale-token;current=9;applied"),
        (GenerationConflict(token(), 7), 412, "generation-conflict;current=7;applied"),
        (JobMismatch(token(), "other"), 409, "outcome-unknown"),
        (NotArmed(token()), 409, "outcome-unknown"),
        (IdempotencyMismatch(), 409, "outcome-unknown"),
        (Refused(KEY_REQUIRED), 400, "idempotency-key-required;applied"),  # as Fence.step raises it
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_these_gates_cannot_see_is_not_denied(kind, gate, error, status, word):
    """After it has admitted, a handler may have done something: no refusal says that nothing was."""
    door = Door(kind, gate)
    door.handler = raises(error)
    reply = door.ask(token())
    assert (reply.status, reply.fencing) == (status, word)


def test_a_key_that_was_used_for_other_content_is_told(kind, gate):
    """IdempotencyMismatch in a handler that has done nothing yet is 422."""
    door = Door(kind, gate)
    door.handler = raises(IdempotencyMismatch(), first=False)
    reply = door.ask(token())
    assert (reply.status, reply.fencing) == (422, "idempotency-key-reused")


def test_an_exempt_route_that_admits_says_that_a_token_is_required(kind, gate):
    """MissingToken that comes out of an exempt route is the 428 that other routes answer, not a 500."""
    door = Door(kind, gate, exempt=lambda _: True)
    door.handler = admits
    reply = door.ask()
    assert (reply.status, reply.fencing) == (428, "token-required")
    door.handler = lambda admit: 200
    assert (door.ask().status, door.ask().fencing) == (200, None)
    door.handler = raises(MissingToken())
    assert Door(kind, gate).ask().status == 428


def test_a_read_whose_handler_admits_says_that_a_token_is_required(kind, gate):
    """A GET carries none: MissingToken that comes out of it is a 428, too, and any other GET is served."""
    door = Door(kind, gate)
    door.method = "GET"
    door.handler = admits
    assert (door.ask().status, door.ask(token()).fencing) == (428, "token-required")
    door.handler = lambda admit: 200
    assert (door.ask().status, door.ask().fencing) == (200, None)


def test_an_exemption_that_does_not_say_lets_nobody_in(kind, gate):
    """What is no bool, as a match, a coroutine or a string, is a TypeError, and nothing is run."""
    for said in (None, 1, "no", re.match("a", "a")):
        door = Door(kind, gate, exempt=lambda _, said=said: said)
        for shown in (None, token()):
            with pytest.raises(TypeError, match="True or False"):
                door.ask(shown)
        assert door.ran == 0


def test_the_functions_of_a_service_are_plain_ones(kind, gate):
    """A coroutine would be true whatever it says; what is no function is told at once as well."""

    async def asks(_: Any) -> bool:
        return False

    async def yields(_: Any) -> Any:
        yield False

    class Asks:
        async def __call__(self, _: Any) -> bool:
            return False

    for function in (asks, yields, Asks(), functools.partial(asks, 1), True, "/health"):
        with pytest.raises(TypeError, match="exempt is a"):
            Door(kind, gate, exempt=function)
        with pytest.raises(TypeError, match="principal is a"):
            Door(kind, gate, principal=function)
        with pytest.raises(TypeError, match="current is a"):
            sinkfence_http.AuthorityLookup(function)
    with pytest.raises(TypeError, match="current is a function"):
        aio.AuthorityLookup({})


def test_a_table_that_missed_a_guard_is_no_missing_header(kind, gate):
    """On a fenced route MissingToken is the service's own fault: its caller has sent a token."""
    door = Door(kind, gate)
    door.handler = raises(MissingToken())
    with pytest.raises(MissingToken):
        door.ask(token())


@pytest.fixture
def issued() -> dict[str, Any]:
    """What the lease store says of each job."""
    return {JOB: (8, "a")}


def lookup(kind: str, issued: dict[str, Any], asked: list[str] | None = None) -> Any:
    def current(job_id: str) -> Any:
        if asked is not None:
            asked.append(job_id)
        if isinstance(answer := issued.get(job_id), Exception):
            raise answer
        return answer

    async def current_async(job_id: str) -> Any:
        return current(job_id)

    return AuthorityLookup(current) if kind == "wsgi" else aio.AuthorityLookup(current_async)


def gates(kind: str, folder: Path, dsn: str) -> list[Any]:
    sink = sinkfence_postgres.PostgresSink if kind == "wsgi" else sinkfence_postgres.aio.PostgresSink
    return [gate_of(kind, "host", folder), gate_of(kind, "door", folder), sink(dsn)]


def test_a_number_that_nobody_issued_raises_no_mark(kind, tmp_path, dsn, issued):
    """Above the newest lease, its number under another owner, a job without a lease: 403, mark untouched."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
    for gate in gates(kind, tmp_path, dsn):
        door = Door(kind, gate, lookup(kind, issued), strict=False)
        for shown in (token(9), token(10**15 - 1), token(8, "b"), token(1, job_id="nobody-s")):
            reply = door.ask(shown)
            assert (reply.status, reply.fencing) == (403, "unauthentic-token")
            assert door.arm(shown).fencing == "unauthentic-token"
        assert door.ran == 0
        assert door.ask(token(7)).fencing == "stale-token"  # between the mark, of which there is none, and 8
        assert door.ask(token(8)).fencing == "accepted"
        issued[JOB] = (9, "b")
        assert door.arm(token(9, "b")).fencing == "armed"
        assert door.ask(token(8)).fencing == "stale-token"  # the mark isn't told to whoever asks
        issued[JOB] = (8, "a")


def test_the_store_is_asked_only_where_a_mark_would_rise(kind, tmp_path, dsn, issued):
    """Of a known owner, and of a stale one, nobody asks: the service outlives its lease store."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
    for gate in gates(kind, tmp_path, dsn):
        asked: list[str] = []
        door = Door(kind, gate, lookup(kind, issued, asked), strict=False)
        door.ask(token(8))
        assert asked == [JOB]
        assert [door.ask(shown).status for shown in (token(8), token(7), token(8, "b"))] == [200, 412, 412]
        assert asked == [JOB]


def test_a_lease_store_that_does_not_answer_keeps_the_door_shut(kind, gate, issued, caplog):
    """503 for what would raise a mark; the reason is in the log, and not in the answer."""
    issued[JOB] = ConnectionError("host=leases password=swordfish")
    reply = Door(kind, gate, lookup(kind, issued), strict=False).ask(token(8))
    assert (reply.status, reply.fencing) == (503, "fence-unavailable")
    assert b"swordfish" not in reply.body
    assert "swordfish" in caplog.text


def test_what_does_not_go_together_is_refused_at_construction(tmp_path):
    """The twins can't be mixed, and replay needs somebody to answer to."""
    host, async_host = HostGate(tmp_path), aio.HostGate(tmp_path)
    trust = TrustedNetwork()
    with pytest.raises(ValueError, match="principal="):
        sinkfence_http.Fence(host, trust, replay=host.replay())
    with pytest.raises(ValueError, match="principal="):
        aio.Fence(async_host, trust, replay=async_host.replay())
    with pytest.raises(TypeError):
        sinkfence_http.Fence(host, trust, replay=async_host.replay(), principal=lambda _: "ann")
    with pytest.raises(TypeError):
        aio.Fence(async_host, trust, replay=host.replay(), principal=lambda _: "ann")
    with pytest.raises(TypeError):
        sinkfence_http.Fence(host, trust, replay=True, principal=lambda _: "ann")
    with pytest.raises(TypeError):
        sinkfence_http.Fence(host, lookup("asgi", {}))
    with pytest.raises(TypeError):
        aio.Fence(async_host, lookup("wsgi", {}))
    for bad in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="max_body"):
            host.replay(bad)
        with pytest.raises(ValueError, match="max_body"):
            sinkfence_postgres.PostgresSink("host=nowhere").replay(bad)
    assert not hasattr(DoorOnly(), "replay")


def test_a_claim_that_is_cancelled_leaves_nothing_in_progress(tmp_path):
    """A caller that leaves while its record is being written finds its key free, or its outcome told."""

    async def scene() -> list[str]:
        gate, states = aio.HostGate(tmp_path), []
        await gate.announce(token())
        replay = gate.replay()
        for turns in range(30):
            key = f"k{turns}"

            async def claim(key: str = key) -> None:
                async with replay.claim(token(), key, "f"):
                    await asyncio.sleep(60)

            task = asyncio.create_task(claim())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            while True:
                async with replay.claim(token(), key, "f") as again:
                    state = again.state
                    await again.leave(undone=True)
                if state != "in-progress":
                    break
                await asyncio.sleep(0)
            states.append(state)
        return states

    assert set(asyncio.run(scene())) <= {"run", "unknown"}
    assert list(tmp_path.glob("attempt-*")) == []


def test_a_superseded_attempt_keeps_nothing(tmp_path):
    """What 7 answers after 8 has taken its request over does not come in place of what 8 answered."""
    gate = HostGate(tmp_path)
    replay = gate.replay()
    with replay.claim(token(7), "k", "f") as old, replay.claim(token(8), "k", "f") as new:
        assert (old.state, new.state) == ("run", "run")
        new.keep("of 8")
        old.keep("of 7")
        old.leave(undone=True)
    with replay.claim(token(8), "k", "f") as again:
        assert (again.state, again.answer) == ("answered", "of 8")
    with replay.claim(token(7), "k2", "f"), pytest.raises(StaleToken), replay.claim(token(6), "k2", "f"):
        pass


def test_threads_that_claim_at_once(tmp_path):
    """Of many at once one runs, and each other is told that it does."""
    replay = HostGate(tmp_path).replay()
    start, states, done = threading.Barrier(8), [], threading.Event()

    def claim() -> None:
        start.wait()
        with replay.claim(token(), "k", "f") as mine:
            states.append(mine.state)
            if mine.state == "run":
                done.wait()

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for each in threads:
        each.start()
    while len(states) < 8:
        pass
    done.set()
    for each in threads:
        each.join()
    assert sorted(states) == ["in-progress"] * 7 + ["run"]


def test_what_a_lax_door_answered_before_the_handler_admitted_is_not_kept(tmp_path):
    """Also with strict=False a 401 of a login is not what its repetition is answered."""
    gate = HostGate(tmp_path)
    fence = sinkfence_http.Fence(
        gate, TrustedNetwork(), replay=gate.replay(), principal=lambda _: "ann", strict=False
    )

    def app(environ, start_response):
        start_response("401 Unauthorized", [])
        return [b"who are you?"]

    door = wsgi.FencingMiddleware(app, fence)

    def ask() -> str:
        heads: list[dict[str, str]] = []
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/",
            "wsgi.input": io.BytesIO(),
            "HTTP_FENCING_TOKEN": '"job";g=7;o="o"',
            "HTTP_IDEMPOTENCY_KEY": "k",
        }
        assert b"".join(door(environ, lambda _, headers: heads.append(dict(headers))))
        return heads[0]["Fencing-Status"]

    assert ask() == "accepted"
    assert ask() != "accepted;replayed"


def test_what_answers_for_a_handler_that_need_not_admit_is_kept(tmp_path):
    """With strict=False a success is the handler's, admitted or not: its repetition is answered alike."""
    gate = sinkfence_http.HostGate(tmp_path)
    runs: list[int] = []

    def app(environ, start_response):
        runs.append(1)
        start_response("201 Created", [])
        return [b"done"]

    fence = sinkfence_http.Fence(
        gate, TrustedNetwork(), replay=gate.replay(), principal=lambda _: "ann", strict=False
    )
    door = wsgi.FencingMiddleware(app, fence)

    def ask() -> str:
        heads: list[dict[str, str]] = []
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/",
            "wsgi.input": io.BytesIO(),
            "HTTP_FENCING_TOKEN": '"job";g=7;o="o"',
            "HTTP_IDEMPOTENCY_KEY": "k",
        }
        body = door(environ, lambda _, headers: heads.append(dict(headers)))
        assert b"".join(body) == b"done"
        getattr(body, "close", lambda: None)()
        return heads[0]["Fencing-Status"]

    assert [ask(), ask(), len(runs)] == ["accepted", "accepted;replayed", 1]
