"""Every destination of the library keeps every promise that it claims."""

from __future__ import annotations

import contextlib
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from real_sinks import (
    S3,
    TABLE,
    Bound,
    Door,
    HostDoor,
    Locked,
    LongS3,
    Memory,
    Once,
    OpenS3,
    Postgres,
    application,
    hosted,
)

import sinkfence_postgres
from sinkfence.testing import exercise_sink
from sinkfence_http import DoorOnly, Fence, HostGate, TrustedNetwork, wsgi


@pytest.fixture
def table(dsn):
    """A table in a database that is fenced."""
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute(TABLE)
    with psycopg_pool.ConnectionPool(dsn, min_size=4, max_size=16, open=True) as pool:
        yield Postgres(pool)


class Quiet(WSGIRequestHandler):
    """Says nothing of requests."""

    def log_message(self, *_):
        pass


class Threads(ThreadingMixIn, WSGIServer):
    """A thread per connection."""

    daemon_threads = True


@contextlib.contextmanager
def served(app, fence):
    """The URL of a service behind the WSGI door."""
    door = wsgi.FencingMiddleware(app, fence)
    with make_server("127.0.0.1", 0, door, server_class=Threads, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def door(table):
    """A service with the table's database as its gate."""
    pauses = {}
    fence = Fence(sinkfence_postgres.PostgresSink(table.pool), TrustedNetwork())
    with served(application(table.pool, fence, pauses), fence) as url:
        yield Door(table, url, pauses)


@contextlib.contextmanager
def behind(gate):
    """A service that leaves the check to a gate."""
    effects, pauses = [], {}
    fence = Fence(gate, TrustedNetwork())
    with served(hosted(effects, fence, pauses), fence) as url:
        yield HostDoor(effects, url, pauses)


def not_run(report):
    """What a report leaves open."""
    return {result.promise for result in report.not_run}


KEYS = {
    "D4 duplicate-once",
    "D4 duplicate-across-owners",
    "D4 other-content-refused",
    "D1 fence-before-key",
    "D6 refused-leaves-no-key",
    "D8 duplicate-raises-mark",
}


def test_memory():
    """MemoryMarks is a fence for as long as its process lives."""
    report = exercise_sink(Memory())
    report.check()
    assert not_run(report) == KEYS | {"D8 mark-survives"}
    assert "the fence with them" in str(report)


def test_postgres(table):
    """PostgresSink: armed, written to in guarded transactions."""
    report = exercise_sink(table, examples=10)
    report.check()
    assert not_run(report) == KEYS


def test_postgres_with_a_lock(table):
    """guard(lock=True) keeps the same promises, but that nobody is kept waiting."""
    report = exercise_sink(Locked(table.pool), examples=2)
    report.check()
    assert not_run(report) == KEYS | {"L2 arm-not-kept-waiting"}


def test_postgres_once(table):
    """The ledger keeps the promises of keys as well, but that it compares the names of steps alone."""
    report = exercise_sink(Once(table.pool), examples=2)
    assert [result.promise for result in report.failed] == ["D4 other-content-refused"]
    assert not_run(report) == {"D8 duplicate-raises-mark"}  # an unarmed write is refused


def test_postgres_by_bound_sessions(table):
    """Sessions that are bound to a bearer keep the same promises."""
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(table.pool.conninfo), pool_size=16
    )
    report = exercise_sink(Bound(table.pool, engine), examples=2)
    engine.dispose()
    report.check()
    assert not_run(report) == KEYS


@pytest.mark.parametrize("kind", [S3, LongS3, OpenS3])
def test_s3(kind, s3_server, prefix):
    """FencedObject: armed, put to or written to as a file, with steps."""
    report = exercise_sink(kind(s3_server, prefix), examples=5 if kind is S3 else 2)
    report.check()
    assert not_run(report) == set()


def test_http(door):
    """The WSGI door before PostgresSink, called by FencedAdapter and HttpSink."""
    report = exercise_sink(door, examples=10)
    report.check()
    assert not_run(report) == KEYS


def test_http_on_a_host(tmp_path):
    """The same before HostGate, but that a newer owner waits for an older one's requests to be answered."""
    with behind(HostGate(tmp_path)) as door:
        report = exercise_sink(door, examples=1)
    report.check()
    assert not_run(report) == KEYS | {"L2 arm-not-kept-waiting"}


def test_http_by_the_door_only():
    """DoorOnly is no fence, and would be found out if it claimed to be one."""
    with behind(DoorOnly()) as door:
        report = exercise_sink(door, examples=1)
    assert [result.promise for result in report.failed] == ["D1 delayed-refused", "D9 delayed-after-arm"]
