"""A worker that is paused or cut off, and three destinations that refuse it and ask no lease store."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
import requests

import sinkfence_postgres
from sinkfence import Leases, StaleToken, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_http import Fence, HostGate, TrustedNetwork, wsgi
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, once
from sinkfence_s3 import FencedBucket
from sinkfence_trials.servers.postgres import PostgresServer
from sinkfence_trials.servers.s3 import S3Server

JOB = "invoice-42"

WORKER = """
import asyncio, json, sys, threading
import psycopg, requests
from sinkfence import Leases, LeaseLost, aio
from sinkfence_trials.servers.s3 import S3Server
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_s3 import FencedBucket

kind, url, job, ledger, service, prefix, bucket = sys.argv[1:]
server = S3Server(*json.loads(bucket))
report = FencedBucket(server.client(), server.bucket, prefix=prefix).object("report")
session, conn = requests.Session(), psycopg.connect(ledger)
sinks = [PostgresSink(ledger), report, HttpSink(session, service)]

def insert():
    with transaction(conn, token):
        conn.execute("insert into entry values (%s)", (who,))

def post():
    session.post(f"{service}/{job}", data=who).raise_for_status()

def write():
    for send in (insert, lambda: report.put(who.encode(), token), post):
        try:
            send()
            print("written", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)

def prepared(lease):
    global token, who
    token, who = lease.token, "A"
    session.mount(service, FencedAdapter(token))
    write()
    who = "late A"

told = threading.Event()
def on_lost(lease, error):
    print("lost", flush=True)
    told.set()

def go_on(lease):
    told.wait(60)
    try:
        lease.token
    except LeaseLost:
        print("knows", flush=True)
    sys.stdin.readline()
    write()

if kind == "threads":
    leases = Leases(SqlStore(url), ttl=1.0, on_lost=on_lost)
    try:
        with leases.hold(job, arm=sinks) as lease:
            prepared(lease)
            go_on(lease)
    except Exception as error:
        print("left by", type(error).__name__, flush=True)
else:
    async def main():
        leases = aio.Leases(sql_aio.SqlStore(url), ttl=1.0, on_lost=on_lost)
        try:
            async with leases.hold(job, arm=sinks) as lease:
                await asyncio.to_thread(prepared, lease)
                await asyncio.to_thread(go_on, lease)
        except Exception as error:
            print("left by", type(error).__name__, flush=True)
    asyncio.run(main())
"""


class Quiet(WSGIRequestHandler):
    """Says nothing of requests."""

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Places:
    """Three destinations, each with marks of its own, and what each has in it, read past its fence."""

    ledger: str
    service: str
    prefix: str
    server: S3Server
    posted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self.server.client()
        self.report = FencedBucket(self.client, self.server.bucket, prefix=self.prefix).object("report")
        self.session = requests.Session()

    @property
    def sinks(self) -> list[Any]:
        return [PostgresSink(self.ledger), self.report, HttpSink(self.session, self.service)]

    def write(self, bearer: Any, who: str) -> None:
        with PostgresSink(self.ledger).begin(bearer) as conn:
            conn.execute("insert into entry values (%s)", (who,))
        self.report.put(who.encode(), bearer)
        self.session.mount(self.service, FencedAdapter(bearer))
        self.session.post(f"{self.service}/{JOB}", data=who).raise_for_status()

    def truth(self) -> tuple[list[str], dict[str, str], list[str]]:
        with psycopg.connect(self.ledger) as conn:
            rows = [note for (note,) in conn.execute("select note from entry")]
        listed = self.client.list_objects_v2(Bucket=self.server.bucket, Prefix=self.prefix)
        objects = {each["Key"]: each["ETag"] for each in listed.get("Contents", [])}
        return rows, objects, self.posted.copy()


@pytest.fixture
def places(
    postgres_server: PostgresServer, s3_server: S3Server, prefix: str, tmp_path: Path
) -> Iterator[Places]:
    """A database, an object, and a service with a gate of its own."""
    dsn = postgres_server.create_database()
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute("create table entry (note text)")
    fence = Fence(HostGate(tmp_path / "gate"), TrustedNetwork(), strict=False)

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        fence.admit(environ, JOB)
        places.posted.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode())
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    with make_server("127.0.0.1", 0, wsgi.FencingMiddleware(app, fence), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        places = Places(dsn, f"http://127.0.0.1:{server.server_port}", prefix, s3_server)
        yield places
        places.session.close()
        places.client.close()
        server.shutdown()
        thread.join()
    postgres_server.drop_database(dsn)


@pytest.fixture
def worker(child: Callable[..., Any], places: Places) -> Callable[[str, str], Any]:
    """Starts A at a store: it has armed all three and written to each."""

    def start(kind: str, url: str) -> Any:
        bucket = json.dumps(astuple(places.server))
        a = child(WORKER, kind, url, JOB, places.ledger, places.service, places.prefix, bucket)
        assert [a.hear() for _ in range(3)] == ["written"] * 3
        return a

    return start


def succeeds(a: Any, places: Places, url: str, go_on: Callable[[], None]) -> None:
    """B takes over and writes; A goes on, sends its three writes, and is refused by each, and B is not."""
    with closing(SqlStore(url)) as store, Leases(store, ttl=60) as leases:
        with leases.hold(JOB, wait=60, arm=places.sinks) as b:
            assert b.generation == 2
            places.write(b, "B")
            before = places.truth()
            assert (before[0], before[2]) == (["A", "B"], ["A", "B"])
            go_on()
            assert [a.hear(), a.hear()] == ["lost", "knows"]
            a.say("write")
            assert [a.hear() for _ in range(3)] == ["StaleToken"] * 3
            assert places.truth() == before
            places.write(b, "B again")
            b.renew()
        assert places.report.get().read() == b"B again"


@pytest.mark.parametrize(("kind", "where"), [("threads", "pg_url"), ("loop", "lite_url")])
def test_a_stopped_worker_changes_nothing_at_three_destinations(
    request: pytest.FixtureRequest,
    places: Places,
    worker: Callable[[str, str], Any],
    admin: psycopg.Connection,
    kind: str,
    where: str,
) -> None:
    """C07: stopped for its ttl and a second, with its writes prepared; each destination refuses by itself."""
    url = request.getfixturevalue(where)
    a = worker(kind, url)
    a.signal(signal.SIGSTOP)
    admin.execute("select pg_sleep(2)")  # its ttl and a second
    succeeds(a, places, url, lambda: a.signal(signal.SIGCONT))
    assert a.hear() == "left by LeaseLost"


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_worker_that_is_cut_off_from_the_store_alone(
    far_url: str, pg_url: str, wire: Any, places: Places, worker: Callable[[str, str], Any], kind: str
) -> None:
    """C10: its ways to the destinations stay open; it is told by its own deadline, and refused by each."""
    a = worker(kind, far_url)
    wire.swallow = True
    succeeds(a, places, pg_url, lambda: None)
    wire.close()
    assert a.hear().startswith("left by ")


@pytest.fixture
def far_url(pg_url: str, wire: Any) -> str:
    """The URL of the PostgreSQL store by way of the wire."""
    port = psycopg.conninfo.conninfo_to_dict(pg_url)["port"]
    return pg_url.replace(f":{port}/", f":{wire.port}/").replace("postgresql:", "postgresql+psycopg:")


def test_each_step_is_done_once_by_whoever_owns_the_job(url: str, places: Places) -> None:
    """C05: no heartbeat, three workers, ten steps: late ones are refused from the takeover on."""
    sink = PostgresSink(places.ledger)
    done, refused = [], Counter[int]()
    with psycopg.connect(places.ledger) as conn:
        conn.execute("create table line (step int, generation bigint)")

    def step(token: Token, number: int) -> None:
        row = {"step": number, "generation": token.generation}
        with sink.begin(token) as conn:
            insert = "insert into line values (%(step)s, %(generation)s)"
            once(conn, token, f"line {number}", lambda: conn.execute(insert, row) and token.generation)

    workers: list[tuple[Token, Iterator[int]]] = []
    with closing(SqlStore(url)) as store, Leases(store, ttl=0.05) as leases:
        for gets_to in (3, 6, 10):
            token = leases.acquire(JOB, ttl=0.2, wait=60)._tenure.token  # it never looks at its lease again
            sink.arm(token)
            workers.append((token, iter(range(10))))
            for late, numbers in workers[:-1]:
                for number in numbers:
                    with pytest.raises(StaleToken):
                        step(late, number)
                    refused[late.generation] += 1
            for number in range(gets_to):
                step(token, next(workers[-1][1]))
                done.append((token.generation, number))
    with psycopg.connect(places.ledger) as conn:
        lines = conn.execute("select step, generation from line order by step").fetchall()
    assert lines == [(n, 1 if n < 3 else 2 if n < 6 else 3) for n in range(10)]
    assert refused == {1: 7, 2: 4}
    assert len(done) == 19
