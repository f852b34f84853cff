"""Where a worker writes: a table, an object, a service; through the sink, or round it."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from sinkfence.sinks import Sink
from sinkfence.tokens import Token
from sinkfence.torture.places import Bucket
from sinkfence_postgres import PostgresSink, once, transaction

if TYPE_CHECKING:
    from sinkfence_s3 import FencedObject

INSERT: Final = """
    INSERT INTO scenario_effect (job, generation, owner, id, step, payload, base)
    VALUES (%s, %s, %s, %s, %s, %s,
        (SELECT id FROM scenario_effect WHERE job = %s ORDER BY seq DESC LIMIT 1))"""


@dataclass(frozen=True, slots=True)
class Write:
    """One attempt."""

    token: Token
    id: str
    step: str | None = None
    payload: bytes = b""

    @property
    def row(self) -> tuple[Any, ...]:
        """As INSERT takes it."""
        token = self.token
        key = None if self.step is None else token.key(self.step)
        return token.job_id, token.generation, token.owner, self.id, key, self.payload, token.job_id


class Destination(Protocol):
    """One worker's way to one destination."""

    failed: tuple[type[Exception], ...]
    """By these the destination's client says that nothing was done."""

    @property
    @abstractmethod
    def sink(self) -> Sink:
        """What is armed."""

    @abstractmethod
    def write(self, write: Write) -> str:
        """Make an effect, and return the id of the attempt that made it: an earlier one's, if it was done."""


@dataclass
class Table:
    """A table of PostgreSQL, a connection for each write."""

    dsn: str
    name: str
    fenced: bool
    failed: tuple[type[Exception], ...] = (psycopg.Error,)

    @property
    def sink(self) -> Sink:
        return PostgresSink(self.dsn)

    def write(self, write: Write) -> str:
        with psycopg.connect(self.dsn, application_name=self.name, prepare_threshold=None) as conn:
            if not self.fenced:
                conn.execute(INSERT, write.row)
                return write.id
            with transaction(conn, write.token):
                return insert(conn, write)


def insert(conn: psycopg.Connection[Any], write: Write) -> str:
    """Insert a row in a guarded transaction, a step's once."""

    def effect() -> str:
        conn.execute(INSERT, write.row)
        return write.id

    return str(once(conn, write.token, write.step, effect)) if write.step else effect()


@dataclass
class Object:
    """An S3 object. It has no steps here."""

    bucket: Bucket
    job: str
    fenced: bool
    failed: tuple[type[Exception], ...] = ()

    @cached_property
    def client(self) -> Any:
        # One attempt, and no question whether to go on: what is held is then the whole request.
        client = self.bucket.client(retries={"total_max_attempts": 1}, read_timeout=300)
        client.meta.events.register_last("before-call.s3", without_question)
        return client

    @property
    def sink(self) -> FencedObject:
        from sinkfence_s3 import FencedBucket

        return FencedBucket(self.client, self.bucket.name, probe="never").object(self.job)

    def write(self, write: Write) -> str:
        token = write.token
        told = {"generation": token.generation, "owner": token.owner, "id": write.id}
        body = json.dumps(told).encode()
        if self.fenced:
            self.sink.put(body, token)
        else:
            self.client.put_object(Bucket=self.bucket.name, Key=self.job, Body=body)
        return write.id


def without_question(params: dict[str, Any], **_: Any) -> None:
    """Take `Expect: 100-continue` out, after which a client keeps its body back."""
    params["headers"].pop("Expect", None)


@dataclass
class Remote:
    """The HTTP service that writes to the table."""

    url: str
    fenced: bool
    failed: tuple[type[Exception], ...] = ()

    @cached_property
    def session(self) -> Any:
        import requests

        session = requests.Session()
        session.trust_env = False
        return session

    @property
    def sink(self) -> Sink:
        from sinkfence_http.requests_adapter import HttpSink

        return HttpSink(self.session, self.url)

    def write(self, write: Write) -> str:
        from sinkfence_http.requests_adapter import FencedAdapter

        token = write.token
        if self.fenced:
            # No new one for each write, which would have no connection to begin with.
            adapter = self.session.adapters.get(self.url + "/") or FencedAdapter(token)
            self.session.mount(self.url + "/", adapter)
        told = {"job": token.job_id, "generation": token.generation, "owner": token.owner, "id": write.id}
        answer = self.session.post(f"{self.url}/effects", json=told, timeout=300)
        answer.raise_for_status()
        return write.id
