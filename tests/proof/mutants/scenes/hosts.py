"""Scenes at a host's gate: real files and locks, the door of WSGI, the caller's own rules."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any

from mutants.scenes import BASE, JOB, Effect, Ground, Scene
from sinkfence.errors import OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_http import AuthorityLookup, Fence, HostGate, TrustedNetwork, wire, wsgi
from sinkfence_http.answers import Refused
from sinkfence_http.calls import Caller
from sinkfence_http.verifiers import Verifier

Play = Callable[["Host"], Scene]


class Returned(Exception):
    """An answer that isn't a success, and that a caller is given as it is."""


class Host:
    """A service with a HostGate, whose handler leaves the check to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects: list[Effect] = []
        self.scene = Scene(lambda: self.effects)
        self.gate = HostGate(folder, drain_timeout=0.05)
        self.verifier: Verifier = TrustedNetwork()
        self.ends: list[str] = []
        """Where the worker is ended in a handler: before its effect, or after, or its answer breaks off."""

    def apply(self, token: Token, attempt: str) -> None:
        self.effects.append(Effect(token.generation, token.owner, attempt, len(self.effects)))

    def handle(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        token = self.fence.admit(environ, self.scene.job)
        end = self.ends.pop() if self.ends else ""
        if end == "answering":
            start_response("200 OK", [("Content-Length", "4")])
            return [b"do"]
        if end != "before":
            self.apply(token, environ["wsgi.input"].read().decode())
        if end:
            raise SystemExit("the worker is ended")
        start_response("200 OK", [])
        return [b"done"]

    def request(self, token: Token, attempt: str, key: str = "", path: str = "/work") -> None:
        """Send a request, and understand the answer as a caller does."""
        replay = self.gate.replay()
        self.fence = Fence(self.gate, self.verifier, replay=replay, principal=lambda _: "workers")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "HTTP_FENCING_TOKEN": wire.format_token(token),
            "CONTENT_LENGTH": str(len(attempt)),
            "wsgi.input": BytesIO(attempt.encode()),
        }
        told: list[Any] = []
        door = wsgi.FencingMiddleware(self.handle, self.fence)
        if key:
            environ["HTTP_IDEMPOTENCY_KEY"] = key
        answer = door(environ, lambda *head: told.append(head))
        body = b"".join(answer)
        getattr(answer, "close", list)()
        if int(dict(told[0][1]).get("Content-Length", len(body))) != len(body):
            raise OutcomeUnknown("half an answer")
        status = int(told[0][0][:3])
        pause = Caller(token, None).begin("POST", None, rewindable=True).answered(status, dict(told[0][1]))
        if pause is not None or status >= 400:
            raise Returned(f"{status} {body!r}")

    def arm(self, token: Token) -> None:
        self.request(token, "", path=wire.ARM_PATH)


def on_a_host(play: Play) -> Callable[[Ground], Scene]:
    """Give a scene a host with an empty folder."""

    @wraps(play)
    def scene(_: Ground) -> Scene:
        with tempfile.TemporaryDirectory() as folder:
            return play(Host(Path(folder)))

    return scene


def first(host: Host) -> Token:
    """Issue A, which arms."""
    a = host.scene.issued(1, "A")
    with host.scene.arming(a):
        host.arm(a)
    return a


def successor(host: Host) -> Token:
    """Issue B, which arms."""
    b = host.scene.issued(2, "B")
    with host.scene.arming(b):
        host.arm(b)
    return b


@on_a_host
def takeover(host: Host) -> Scene:
    """A posts; B arms; A posts once more."""
    a = first(host)
    with host.scene.rightful(a) as attempt:
        host.request(a, attempt)
    successor(host)
    with host.scene.late(a) as attempt:
        host.request(a, attempt)
    return host.scene


@on_a_host
def inside(host: Host) -> Scene:
    """A's request is inside; B comes, and is turned away; A's has its effect and leaves; B comes again."""
    scene, a = host.scene, first(host)
    b = scene.issued(2, "B")
    with scene.writing(a) as attempt, host.gate.enter(a):
        with suppress(Refused):
            host.gate.announce(b)
            with host.gate.enter(b):
                scene.look()
                scene.armed(b)
        host.apply(a, attempt)
    with scene.arming(b):
        host.arm(b)
    with scene.rightful(b) as attempt:
        host.request(b, attempt)
    return scene


@on_a_host
def between_reading_and_locking(host: Host) -> Scene:
    """A's request finds the lock busy, as when somebody looks whether anybody is inside; B arms meanwhile."""
    scene, a = host.scene, first(host)
    job = host.gate.job(a)
    steps = job.entering()
    (path,) = host.folder.glob("*.inside")
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        next(steps)
    successor(host)
    with scene.late(a) as attempt:
        for _ in steps:
            pass
        host.apply(a, attempt)
    job.leave()
    return scene


@on_a_host
def unfinished(host: Host) -> Scene:
    """A's worker is ended before its effect; B asks for the same step, by the key that it derives as well."""
    scene, a = host.scene, first(host)
    host.ends = ["before"]
    with suppress(SystemExit), scene.writing(a, "pay", "of 9 euros"):
        host.request(a, "of 9 euros", "pay")
    b = successor(host)
    with scene.rightful(b, "pay", attempt="of 9 euros"):
        host.request(b, "of 9 euros", "pay")
    return scene


@on_a_host
def repeated(host: Host) -> Scene:
    """A's worker is ended between its effect and its answer; A repeats the request under the same key."""
    scene, a = host.scene, first(host)
    host.ends = ["after"]
    with suppress(SystemExit), scene.writing(a, "pay", "of 9 euros"):
        host.request(a, "of 9 euros", "pay")
    with suppress(Returned, OutcomeUnknown), scene.writing(a, "pay", "of 9 euros"):
        host.request(a, "of 9 euros", "pay")
    return scene


@on_a_host
def broken_off(host: Host) -> Scene:
    """A's handler begins to answer, and breaks off before its effect; A repeats the request under its key."""
    scene, a = host.scene, first(host)
    host.ends = ["answering"]
    for _ in range(2):
        with suppress(Returned, OutcomeUnknown), scene.writing(a, "pay", "of 9 euros"):
            host.request(a, "of 9 euros", "pay")
    return scene


@on_a_host
def another_request(host: Host) -> Scene:
    """A posts, and posts something else under the same key."""
    scene, a = host.scene, first(host)
    with scene.rightful(a) as attempt:
        host.request(a, attempt, "pay")
    with suppress(Returned), scene.writing(a) as attempt:
        host.request(a, attempt, "pay")
    return scene


@on_a_host
def invented(host: Host) -> Scene:
    """The lease store knows A; A's number comes in garbled; B gets the lease, and arms."""
    scene, current = host.scene, {JOB: (BASE + 1, "A:1")}
    host.verifier = AuthorityLookup(current.get)
    a = first(host)
    with suppress(Returned, StaleToken):
        host.arm(Token(JOB, BASE + 9, a.owner))
    current[JOB] = (BASE + 2, "B:2")
    successor(host)
    return scene


@on_a_host
def guessed(host: Host) -> Scene:
    """B gets the lease, and hasn't armed yet; a stranger knows what the next number must be."""
    scene, current = host.scene, {JOB: (BASE + 1, "A:1")}
    host.verifier = AuthorityLookup(current.get)
    first(host)
    current[JOB] = (BASE + 2, "B:2")
    scene.issued(2, "B")
    stranger = Token(JOB, BASE + 2, "C:9")
    with suppress(Returned), scene.writing(stranger) as attempt:
        host.request(stranger, attempt)
    return scene
