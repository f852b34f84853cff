"""Services in processes of their own, and a wire that can be held."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NUMBERS = itertools.count(1)

sys.path.append(str(HERE))
from racing import race_database, start_race  # noqa: E402, F401  # fixtures

_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """In a child: have the system end it when its parent is killed (prctl(2), PR_SET_PDEATHSIG)."""
    if _prctl is not None:
        _prctl(1, signal.SIGKILL)


@dataclass
class Reply:
    """One response, read whole."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def fencing(self) -> str | None:
        """Its Fencing-Status; two of them would be joined, and equal none."""
        found = self.headers.get_all("Fencing-Status")
        return ", ".join(found) if found else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Service:
    """A service in a process of its own."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        *tokens: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | Iterator[bytes] | None = None,
    ) -> Reply:
        """Send one request with exactly these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path)
            for name, value in [*(("Fencing-Token", token) for token in tokens), *headers]:
                connection.putheader(name, value)
            chunked = body is not None and not isinstance(body, bytes)
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            elif method not in ("GET", "HEAD", "OPTIONS"):
                connection.putheader("Content-Length", str(len(body or b"")))
            connection.endheaders(body, encode_chunked=chunked)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())


class Start(Protocol):
    """Start a script with a listening socket."""

    def __call__(self, script: str, *arguments: str, name: str) -> Service: ...


class Wire:
    """A socket that listens, with something behind it that takes connections, and keeps what it was sent."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.release = threading.Event()
        """Set when what is held goes on, at the latest when the wire is closed."""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._take(client)

    def _take(self, client: socket.socket) -> None:
        raise NotImplementedError


class HeldWire(Wire):
    """A TCP proxy that holds a request back, or loses its answer."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.arrived = threading.Event()
        self.answered = threading.Event()
        self.answers: list[bytes] = []
        self.lose_answers = 0
        super().__init__()

    def _take(self, client: socket.socket) -> None:
        threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            while True:
                request = message(client)
                if not request:
                    return
                self.requests.append(request)
                self.arrived.set()
                self.release.wait()
                server.sendall(request)
                answer = message(server)
                self.answers.append(answer)
                self.answered.set()
                if self.lose_answers:
                    self.lose_answers -= 1
                    return
                with contextlib.suppress(OSError):
                    client.sendall(answer)


def message(source: socket.socket) -> bytes:
    """Read one HTTP message off a socket, or what there is of it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = source.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length and (part := source.recv(65536)):
        body += part
    return head + b"\r\n\r\n" + body


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a service's script on a socket that already listens: who connects early waits in its queue."""
    services: list[Service] = []
    folder = tmp_path_factory.mktemp("services")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'adapters'}"}

    def start(script: str, *arguments: str, name: str) -> Service:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        log = folder / f"{name}-{len(services)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "services" / script), name, str(listener.fileno()), *arguments],
                pass_fds=[listener.fileno()],
                stdout=output,
                stderr=output,
                env=environment,
                preexec_fn=end_with_parent,  # noqa: PLW1509  # a system call, and nothing that takes a lock
            )
        service = Service(listener.getsockname()[1], process, log)
        listener.close()
        services.append(service)
        return service

    yield start
    for service in services:
        with contextlib.suppress(ProcessLookupError):
            service.process.send_signal(signal.SIGCONT)
        service.process.kill()
    for service in services:
        service.process.wait()


@pytest.fixture(scope="session")
def door_service(start_service: Start) -> Callable[..., Service]:
    """Return the small service by one of three frameworks; the same settings share one process."""
    running: dict[str, Service] = {}

    def get(framework: str, **settings: Any) -> Service:
        text = json.dumps(settings, sort_keys=True)
        if framework + text not in running:
            running[framework + text] = start_service("door_service.py", text, name=framework)
        return running[framework + text]

    return get


@pytest.fixture(params=["starlette", "fastapi", "flask"])
def door(request: pytest.FixtureRequest, door_service: Callable[..., Service]) -> Service:
    """The small service, by each framework, on a trusted network."""
    return door_service(request.param)


@pytest.fixture
def account() -> int:
    """The number of an account that no other test uses."""
    return next(NUMBERS)


@pytest.fixture
def hold_wire() -> Iterator[Callable[[Service], HeldWire]]:
    """Put a wire that can be held before a service."""
    wires: list[HeldWire] = []

    def hold(service: Service) -> HeldWire:
        wires.append(HeldWire(service.port))
        return wires[-1]

    yield hold
    for wire in wires:
        wire.close()


class Scripted(Wire):
    """A server that answers each request with the next line of a script, one connection after the other."""

    def __init__(self, script: Sequence[bytes | None]) -> None:
        # It closes after each answer. A client that wasn't told so may send its next request into that.
        for answer in script[:-1]:
            whole = answer and b"content-length" in answer.lower() and b"HTTP/1.1 1" not in answer
            assert not whole or b"connection: close" in answer.lower(), answer
        self._script = list(script)
        super().__init__()

    def header(self, number: int, name: str) -> str | None:
        """Return a header of a request that came in."""
        for line in self.requests[number].partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.lower() == name.lower():
                return value.strip()
        return None

    def body(self, number: int) -> bytes:
        return self.requests[number].partition(b"\r\n\r\n")[2]

    def _take(self, client: socket.socket) -> None:
        with client:
            self.requests.append(message(client))
            answer = self._script.pop(0) if self._script else b"HTTP/1.1 599 Script Over\r\n\r\n"
            if answer == b"never":
                self.release.wait()
            elif answer is not None:  # None: the connection is cut
                client.sendall(answer)


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    """Start a server with a script: bytes to answer, None to cut the connection, b"never" to keep silent."""
    servers: list[Scripted] = []

    def start(*script: bytes | None) -> Scripted:
        servers.append(Scripted(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
