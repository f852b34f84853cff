"""Every destination of the library keeps every promise that it claims."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psycopg
import psycopg_pool
import pytest
from real_sinks import S3, TABLE, Door, LongS3, Memory, OpenS3, Postgres, application

import sinkfence_postgres
from sinkfence.testing import exercise_sink
from sinkfence_http import Fence, TrustedNetwork, wsgi


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


@pytest.fixture
def door(table):
    """A service behind the WSGI door, with the table's database as its gate."""
    pauses = {}
    fence = Fence(sinkfence_postgres.PostgresSink(table.pool), TrustedNetwork())
    app = wsgi.FencingMiddleware(application(table.pool, fence, pauses), fence)
    with make_server("127.0.0.1", 0, app, server_class=Threads, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Door(table, f"http://127.0.0.1:{server.server_port}", pauses)
        server.shutdown()
        thread.join()


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
