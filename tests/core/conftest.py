"""The three stores, and sinks that tell what was done to them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sinkfence import LeaseHeld, LeaseLost, Leases, StaleToken, Token, observe
from sinkfence.grants import Store
from sinkfence.marks import MemoryMarks
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore, dialects
from sinkfence.testing import HandClock
from sinkfence_trials.servers.postgres import PostgresServer

JOB = "invoice-42"
OpenStore = Callable[..., SqlStore]


@pytest.fixture(scope="session")
def lease_database(postgres_server: PostgresServer) -> Iterator[tuple[str, SqlStore, psycopg.Connection]]:
    """A database for leases, a store in it, and a connection to tidy up with."""
    url = postgres_server.create_database()
    store = SqlStore(url)
    with psycopg.connect(url, autocommit=True) as connection:
        yield url, store, connection
    store.close()


@pytest.fixture
def pg_url(lease_database: tuple[str, SqlStore, psycopg.Connection]) -> str:
    """The URL of a PostgreSQL database with fresh lease tables in it."""
    url, store, connection = lease_database
    connection.execute("DROP TABLE IF EXISTS sinkfence_lease, sinkfence_schema")
    store.create_schema()
    return url


@pytest.fixture(scope="session")
def lite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with fresh lease tables in it, to be copied."""
    path = tmp_path_factory.mktemp("leases") / "fresh.db"
    store = SqlStore(f"sqlite:///{path}")
    store.create_schema()
    store.close()
    return path


@pytest.fixture
def lite_url(lite_file: Path, tmp_path: Path) -> str:
    """The URL of an SQLite file with fresh lease tables in it."""
    return f"sqlite:///{shutil.copy(lite_file, tmp_path / 'leases.db')}"


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a durable store, of each kind in turn."""
    return request.getfixturevalue("pg_url" if request.param == "postgresql" else "lite_url")


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens stores, and closes them after the test."""
    opened: list[SqlStore] = []

    def open_(url: str, **options: object) -> SqlStore:
        opened.append(SqlStore(url, **options))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture(params=["postgresql", "sqlite", "memory"])
def store(request: pytest.FixtureRequest, open_store: OpenStore) -> Store:
    """A store of each kind in turn."""
    if request.param == "memory":
        return MemoryStore()
    return open_store(request.getfixturevalue("pg_url" if request.param == "postgresql" else "lite_url"))


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """To acquire waits for a locked row without a bound, so that a test can see it wait."""
    unbounded = dataclasses.replace(dialects.POSTGRESQL, wait_100ms="true")
    for module in ("store", "aio"):
        monkeypatch.setattr(f"sinkfence.stores.sql.{module}.POSTGRESQL", unbounded)


@pytest.fixture
def pg(pg_url: str, open_store: OpenStore) -> SqlStore:
    """A store in PostgreSQL."""
    return open_store(pg_url)


@pytest.fixture
def lite(lite_url: str, open_store: OpenStore) -> SqlStore:
    """A store in SQLite."""
    return open_store(lite_url)


@pytest.fixture
def leases_of() -> Iterator[Callable[..., Leases]]:
    """Makes lease managers, and closes them after the test."""
    made: list[Leases] = []

    def make(store: Store, **options: object) -> Leases:
        made.append(Leases(store, **options))
        return made[-1]

    yield make
    for leases in made:
        leases.close(timeout=5)


class Seen:
    """What the SDK was told."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Attributes and value of each point, by the metric's name and unit."""
        data = self.reader.get_metrics_data()
        return {
            f"{metric.name} {metric.unit}": [
                (dict(point.attributes), getattr(point, "value", None) or point.sum)
                for point in metric.data.data_points
            ]
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """The SDK, set up as a program does it, for one test."""
    seen = Seen()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", seen.meters.get_meter)
    monkeypatch.setattr("opentelemetry.trace.get_tracer", seen.tracers.get_tracer)
    observe._telemetry.cache_clear()
    yield seen
    observe._telemetry.cache_clear()
    seen.meters.shutdown()
    seen.tracers.shutdown()


@pytest.fixture
def everything(
    leases_of: Callable[..., Leases], ledger: Ledger, lite_url: str, open_store: OpenStore
) -> Callable[[], None]:
    """What has every metric told: leases taken over, renewed and lost, a refusal, stores in doubt."""

    def happen() -> None:
        clock = HandClock()
        leases = Leases(MemoryStore(clock=clock), ttl=30, _clock=clock, _pause=lambda _: clock.advance(20))
        other = leases.acquire(JOB)
        with pytest.raises(LeaseHeld):
            leases.acquire(JOB)
        lease = leases.acquire(JOB, wait=60)
        lease.renew()
        with pytest.raises(StaleToken), observe.at("postgres", "write", lease.token):
            raise StaleToken(lease.token, 9)
        lease.lose(StaleToken(lease.token, 9))
        with pytest.raises(LeaseLost):
            _ = other.token
        ledger.arm(Token(JOB, 5, "forgotten:1"))
        with leases_of(open_store(lite_url)).hold(JOB, arm=[ledger]) as lease:
            assert lease.generation == 6
        store = open_store(lite_url, floor="clock")
        store.raise_above("another", 10**14)
        store.acquire("another", "a:1", 30.0)

    return happen


@pytest.fixture
def admin(pg_url: str) -> Iterator[psycopg.Connection]:
    """A connection to the store's database, in autocommit, that tampers and looks."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        yield connection


class Ledger(MemoryMarks):
    """A sink as a durable one: it remembers, and counts how often it was armed."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.armed: list[Token] = []
        self.before_arming: Callable[[], None] = lambda: None

    def arm(self, bearer: object) -> None:
        """Arm, after whatever the test wants to happen first."""
        hook, self.before_arming = self.before_arming, lambda: None
        hook()
        super().arm(bearer)
        self.armed.append(bearer.token)


@pytest.fixture
def ledger() -> Ledger:
    """A durable sink."""
    return Ledger()


class Losses:
    """An on_lost that keeps what it heard, and on which thread."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, Exception]] = []
        self.threads: list[str] = []
        self.event = threading.Event()

    def __call__(self, lease: object, error: Exception) -> None:
        """Be told."""
        self.heard.append((lease, error))
        self.threads.append(threading.current_thread().name)
        self.event.set()


@pytest.fixture
def losses() -> Losses:
    """An on_lost callback."""
    return Losses()


class Child:
    """A real process that runs a script and talks in lines."""

    def __init__(self, script: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def hear(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; a stop is waited for."""
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(self.process.pid, os.WUNTRACED)


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts child processes, and kills them after the test."""
    started: list[Child] = []

    def start(script: str, *args: str) -> Child:
        started.append(Child(script, *args))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


class Wire:
    """A way to a server that can be cut, or lose one answer."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.lose_answers = 0
        self.at_loss: Callable[[], object] = lambda: None
        self.swallow = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._pairs.append((client, server))
            for source, target, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, target, answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if self.swallow:
                    continue
                if answers and self.lose_answers > 0:
                    self.lose_answers -= 1
                    self.at_loss()
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut it for good."""
        with suppress(OSError):  # or whoever is in accept() keeps it open
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in (end for pair in self._pairs for end in pair):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def wire(pg_url: str) -> Iterator[Wire]:
    """A way to the PostgreSQL server, at its own port."""
    parts = urlsplit(pg_url)
    wire = Wire(parts.hostname, parts.port)
    yield wire
    wire.close()


@pytest.fixture
def far(pg_url: str, wire: Wire, open_store: OpenStore) -> SqlStore:
    """A store in PostgreSQL whose every message goes over the wire."""
    return open_store(pg_url.replace(f":{urlsplit(pg_url).port}/", f":{wire.port}/"))
