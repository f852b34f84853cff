"""An owner frozen at any of its messages changes nothing any more once its successor has worked."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psycopg
import pytest
from places import TABLE, Bucket, HeadThenPut, Postgres, SelectCompareWrite, Service, Store, application
from sweep import sweep

import sinkfence_postgres
from sinkfence.errors import LeaseHeld, LeaseLost, StaleToken
from sinkfence.stores.sql import SqlStore
from sinkfence_http import Fence, TrustedNetwork, wsgi


def run(place):
    """All cases of a place."""
    return list(sweep(place))


def faults(cases):
    """What the checker found, by name."""
    return {violation.invariant for case in cases for violation in case.violations}


def refusals(cases, *kinds):
    """How many old owners were refused by a typed error."""
    return sum(any(isinstance(error, kinds) for error in case.errors) for case in cases)


def assert_fenced(name, cases, say):
    """Nothing was broken, and the successor's effect is the last one, whatever the old owner was told."""
    for case in cases:
        assert not case.violations, f"{case.title}: {case.violations}"
        assert case.winner == "B:2", case.title
    refused = refusals(cases, StaleToken)
    say(f"sweep, {name}: {len(cases)} cases, in {refused} the old owner was refused")
    assert refused, "no old owner was refused: the sweep has tried nothing"


@pytest.fixture
def observer(dsn):
    """A connection that reads the truth."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def table(dsn, observer):
    """A database with marks and a table of effects."""
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute(TABLE)
    return Postgres(dsn, observer)


@pytest.fixture
def bucket(s3_server, bucket_name, prefix):
    """What a client of the bucket needs."""
    keys = {
        "aws_access_key_id": s3_server.access_key,
        "aws_secret_access_key": s3_server.secret_key,
        "region_name": s3_server.region,
    }
    return s3_server.endpoint, keys, bucket_name, prefix


class Quiet(WSGIRequestHandler):
    """Says nothing of requests and of clients that have gone."""

    def log_message(self, *_):
        pass


class Threads(ThreadingMixIn, WSGIServer):
    """A thread per connection: one that is frozen keeps nobody else waiting."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def service(table):
    """The service behind the WSGI door, with PostgreSQL as its gate."""
    fence = Fence(sinkfence_postgres.PostgresSink(table.dsn), TrustedNetwork())
    app = wsgi.FencingMiddleware(application(table.dsn, fence), fence)
    with make_server("127.0.0.1", 0, app, server_class=Threads, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Service(f"http://127.0.0.1:{server.server_port}", table)
        server.shutdown()
        thread.join()


def test_postgres(table, say):
    """Arming and guarded transactions: the table is the successor's."""
    assert_fenced("PostgreSQL", run(table), say)


def test_a_select_before_the_write_is_caught(table):
    """The sweep finds the window between reading the mark and writing, by the invariants named for it."""
    cases = run(SelectCompareWrite(table.dsn, table.observer))
    assert faults(cases) == {"D1", "D9"}


def test_s3(bucket, say):
    """Arming and fenced puts: the object is the successor's."""
    assert_fenced("S3", run(Bucket(*bucket)), say)


def test_a_look_before_the_put_is_caught(bucket):
    """The sweep finds the window between looking and an unconditional put."""
    cases = run(HeadThenPut(*bucket))
    assert faults(cases) == {"D1"}


def test_http(service, say):
    """Arming and posts through the door: the service's table is the successor's."""
    assert_fenced("HTTP", run(service), say)


def test_lease_store(dsn, observer, say):
    """Acquire, renew and complete: one owner at a time, and the job is completed once."""
    store = SqlStore(dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    store.create_schema()
    store.close()
    cases = run(Store(dsn, observer))
    for case in cases:
        assert not case.violations, f"{case.title}: {case.violations}"
    refused = refusals(cases, LeaseLost, LeaseHeld)
    say(f"sweep, lease store: {len(cases)} cases, in {refused} the old owner was refused")
    assert refused
    # Frozen before its completion the old owner has lost the job; frozen after it, the job was done.
    assert {case.winner for case in cases} == {"A:1", "B:2"}
