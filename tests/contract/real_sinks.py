"""How to use each real destination: a harness of about 30 lines each."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import threading
from urllib.parse import quote

import psycopg_pool
import requests
import sqlalchemy
from sqlalchemy.orm import sessionmaker

from sinkfence.marks import MemoryMarks, admit
from sinkfence.testing import SinkCapabilities
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, bind, guard, once, transaction, translated
from sinkfence_s3 import FencedBucket

TABLE = "create table effect (seq bigserial, job text, value text)"
INSERT = "insert into effect (job, value) values (%s, %s)"


class Memory:
    """MemoryMarks with effects beside them, under a lock of their own."""

    capabilities = SinkCapabilities(atomic=True, nonblocking=True, concurrent=True, history=True)

    def __init__(self):
        self.marks, self.effects, self.lock = MemoryMarks(), [], threading.Lock()

    def open(self, job_id):
        return contextlib.nullcontext(self.marks)  # the one handle that there can be

    def arm(self, sink, bearer):
        sink.arm(bearer)

    def write(self, sink, bearer, value, step, between):
        token = bearer.token
        between()
        with self.lock:
            sink.arm(bearer)
            admit(token, sink.mark(token.job_id))
            self.effects.append((token.job_id, value))

    def truth(self, job_id):
        return [value for job, value in self.effects if job == job_id]


class Postgres:
    """A table whose transactions are guarded."""

    capabilities = SinkCapabilities(
        atomic=True, durable=True, nonblocking=True, concurrent=True, needs_arm=True, history=True
    )

    def __init__(self, pool: psycopg_pool.ConnectionPool):
        self.pool = pool

    def open(self, job_id):
        return contextlib.nullcontext(PostgresSink(self.pool))

    def arm(self, sink, bearer):
        sink.arm(bearer)

    def write(self, sink, bearer, value, step, between):
        with sink.begin(bearer) as conn:
            conn.execute(INSERT, (bearer.token.job_id, value))
            between()

    def truth(self, job_id):
        with self.pool.connection() as conn:
            rows = conn.execute("select value from effect where job = %s order by seq", (job_id,)).fetchall()
            return [value for (value,) in rows]


class Locked(Postgres):
    """The same by guard(lock=True): a writer that stands still keeps its successor from arming."""

    capabilities = SinkCapabilities(atomic=True, durable=True, concurrent=True, needs_arm=True, history=True)

    def write(self, sink, bearer, value, step, between):
        with self.pool.connection() as conn:
            guard(conn, bearer, lock=True)
            conn.execute(INSERT, (bearer.token.job_id, value))
            between()
            with translated():
                conn.commit()


class Once(Postgres):
    """The same with the ledger: a step has one effect."""

    capabilities = SinkCapabilities(
        atomic=True, durable=True, nonblocking=True, concurrent=True, keys=True, needs_arm=True, history=True
    )

    def write(self, sink, bearer, value, step, between):
        with sink.begin(bearer) as conn:

            def call():
                conn.execute(INSERT, (bearer.token.job_id, value))

            if step is None:
                call()
            else:
                once(conn, bearer, step, call)
            between()


class Bound(Postgres):
    """The same by sessions that are bound to their bearer."""

    def __init__(self, pool: psycopg_pool.ConnectionPool, engine: sqlalchemy.Engine):
        super().__init__(pool)
        self.engine = engine

    def write(self, sink, bearer, value, step, between):
        with bind(sessionmaker(self.engine), bearer).begin() as session:
            insert = sqlalchemy.text("insert into effect (job, value) values (:job, :value)")
            session.execute(insert, {"job": bearer.token.job_id, "value": value})
            between()


class S3:
    """A fenced object per job. Its ring tells what was put, by hash, in its own bytes."""

    capabilities = SinkCapabilities(
        atomic=True, durable=True, nonblocking=True, concurrent=True, keys=True, history=True
    )

    def __init__(self, server, prefix):
        self.server, self.prefix = server, prefix
        self.client = server.client()
        self.sent = {}

    def key(self, job_id):
        return hashlib.sha256(job_id.encode()).hexdigest()

    def open(self, job_id):
        client = Pausing(self.client)
        return contextlib.nullcontext(
            FencedBucket(client, self.server.bucket, prefix=self.prefix, probe="never").object(
                self.key(job_id)
            )
        )

    def arm(self, sink, bearer):
        sink.arm(bearer)

    def write(self, sink, bearer, value, step, between):
        body = self.body(value)
        self.sent[hashlib.sha256(body).hexdigest()] = value
        PAUSE.set(between)
        self.put(sink, bearer, body, step)

    def body(self, value):
        return value.encode()

    def put(self, sink, bearer, body, step):
        sink.put(body, bearer, step=step)

    def truth(self, job_id):
        try:
            found = self.client.get_object(Bucket=self.server.bucket, Key=self.prefix + self.key(job_id))
        except self.client.exceptions.NoSuchKey:
            return []
        frame = found["Body"].read()
        header = json.loads(frame[12 : 12 + int.from_bytes(frame[8:12], "big")])
        return [self.sent[entry[4]] for entry in header["ring"] if entry[4] is not None]


class LongS3(S3):
    """The same with contents that are too long for the register, and go beside it."""

    def body(self, value):
        return value.encode().ljust(1100 * 1024, b"\0")


class OpenS3(LongS3):
    """The same, written to a file that appears when it is closed."""

    def put(self, sink, bearer, body, step):
        with sink.open(bearer, step=step) as file:
            file.write(body)


class Pause(threading.local):
    """What this thread's next put waits for."""

    between = staticmethod(lambda: None)

    def set(self, between):
        self.between = between

    def take(self):
        between, self.between = self.between, lambda: None
        return between


PAUSE = Pause()


class Pausing:
    """A client that can stand still before its register is sent; what goes beside it is there by then."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def put_object(self, **parameters):
        if ".d/" not in parameters["Key"]:
            PAUSE.take()()
        return self._client.put_object(**parameters)


class Door:
    """A service behind the door, by its URL; it writes to the table of `Postgres`."""

    capabilities = SinkCapabilities(
        atomic=True, durable=True, nonblocking=True, concurrent=True, history=True
    )

    def __init__(self, table: Postgres, url: str, pauses: dict):
        self.table, self.url, self.pauses = table, url, pauses
        self.numbers = itertools.count()

    @contextlib.contextmanager
    def open(self, job_id):
        with requests.Session() as session:
            session.trust_env = False
            yield session, self.url + "/" + quote(job_id, safe="")

    def arm(self, sink, bearer):
        HttpSink(sink[0], self.url).arm(bearer)

    def write(self, sink, bearer, value, step, between):
        session, address = sink
        number = str(next(self.numbers))
        self.pauses[number] = between
        session.mount(self.url, FencedAdapter(bearer))
        session.post(address, data=value, headers={"Pause": number}, timeout=60).raise_for_status()

    def truth(self, job_id):
        return self.table.truth(job_id)


class HostDoor(Door):
    """The same before a HostGate, which keeps a newer owner waiting; the effects are a list."""

    capabilities = SinkCapabilities(atomic=True, durable=True, concurrent=True, history=True)

    def truth(self, job_id):
        return [value for job, value in self.table if job == job_id]


def hosted(effects, fence, pauses):
    """The service that leaves the check to its gate."""

    def app(environ, start_response):
        job_id = environ["PATH_INFO"][1:].encode("latin-1").decode()
        fence.admit(environ, job_id)
        pauses.pop(environ["HTTP_PAUSE"])()
        effects.append((job_id, environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    return app


def application(pool, fence, pauses):
    """The service behind the door, for WSGI."""

    def app(environ, start_response):
        job_id = environ["PATH_INFO"][1:].encode("latin-1").decode()
        value = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
        with pool.connection() as conn, transaction(conn, fence.admit(environ, job_id)):
            conn.execute(INSERT, (job_id, value))
            pauses.pop(environ["HTTP_PAUSE"])()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"done"]

    return app
