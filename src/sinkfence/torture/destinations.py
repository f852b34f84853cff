"""The three destinations as a worker uses them: arm, read, then write what builds on what was read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import psycopg
import requests

from sinkfence.tokens import Token
from sinkfence.torture.places import Bucket
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, once, transaction
from sinkfence_s3 import FencedBucket

SINKS: Final = ("postgres", "s3", "http")

TIMEOUT: Final = 2.0
"""Seconds after which a worker takes an answer for lost."""

KEPT: Final = 64
"""How many effects an object shows: more than are made between two looks of the observer."""

SETTINGS: Final = ("SET idle_in_transaction_session_timeout = '1s'", "SET lock_timeout = '3s'")
"""What bounds the wait for an owner that is frozen inside a transaction: without it, its whole pause."""

WRITES: Final = {"postgres": b"", "s3": b"PUT ", "http": b"POST "}
"""How a request begins that writes, where one can tell."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a destination showed to an owner who had armed it."""

    last: str | None
    """The id of the last effect."""
    count: int
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The last effects, where the destination keeps them in one object."""


@dataclass(frozen=True, slots=True)
class Write:
    """One effect that is wanted. A repetition is the same again."""

    id: str
    step: str
    base: Seen


class Destination(Protocol):
    """One of the three."""

    def arm(self, token: Token) -> None:
        """Say that this is the owner now."""
        ...

    def read(self, token: Token) -> Seen:
        """Look at what the job has had so far."""
        ...

    def write(self, token: Token, write: Write) -> None:
        """Have the effect."""
        ...


class Ledger:
    """A table, in transactions that are refused at their COMMIT. One connection, until it breaks."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.Connection[Any] | None = None

    def arm(self, token: Token) -> None:
        PostgresSink(self._dsn).arm(token)

    def read(self, token: Token) -> Seen:
        query = "SELECT (array_agg(id ORDER BY seq DESC))[1], count(*) FROM torture_entry WHERE job_id = %s"
        with self.connection() as conn, conn.transaction():
            row = conn.execute(query, (token.job_id,)).fetchone()
        assert row is not None
        return Seen(*row)

    def write(self, token: Token, write: Write) -> None:
        with self.connection() as conn, transaction(conn, token):
            once(conn, token, write.step, lambda: self.insert(conn, token, write))

    def insert(self, conn: psycopg.Connection[Any], token: Token, write: Write) -> None:
        """Insert the row, in a transaction that is open."""
        conn.execute(
            "INSERT INTO torture_entry (job_id, generation, owner, id, base, key)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            (token.job_id, token.generation, token.owner, write.id, write.base.last, token.key(write.step)),
        )

    def connection(self) -> _Kept:
        """Return the connection for a `with`: what ends in an error of the driver is closed."""
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._dsn)
            with self._conn.transaction():
                for setting in SETTINGS:
                    self._conn.execute(setting)
        return _Kept(self._conn)


@dataclass(frozen=True, slots=True)
class _Kept:
    conn: psycopg.Connection[Any]

    def __enter__(self) -> psycopg.Connection[Any]:
        return self.conn

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.conn.close()


class Documents:
    """An object for each job, which holds its own last effects."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._prefix = prefix
        client = bucket.client(
            connect_timeout=TIMEOUT, read_timeout=TIMEOUT, retries={"total_max_attempts": 1}
        )
        self.client = client
        # `Trial` has tried it.
        self.bucket: FencedBucket = FencedBucket(client, bucket.name, prefix=prefix, probe="never")

    def arm(self, token: Token) -> None:
        self._object(token).arm(token)

    def read(self, token: Token) -> Seen:
        try:
            found = json.load(self._object(token).get())
        except KeyError:
            return Seen(None, 0)
        return Seen(found["log"][-1]["id"], found["count"], found["log"])

    def write(self, token: Token, write: Write) -> None:
        entry = {
            "id": write.id,
            "generation": token.generation,
            "owner": token.owner,
            "base": write.base.last,
            "key": token.key(write.step),
        }
        body = {"count": write.base.count + 1, "log": [*write.base.log, entry][-KEPT:]}
        self._object(token).put(json.dumps(body).encode(), token, step=write.step)

    def _object(self, token: Token) -> Any:
        return self.bucket.object(token.job_id.removeprefix(self._prefix))


class Service:
    """A service behind its door."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False

    def arm(self, token: Token) -> None:
        HttpSink(self._session, self._url).arm(token)

    def read(self, token: Token) -> Seen:
        found = self._send("GET", token).json()
        return Seen(found["last"], found["count"])

    def write(self, token: Token, write: Write) -> None:
        said = {"id": write.id, "base": write.base.last}
        self._send("POST", token, json=said, headers={"Idempotency-Key": token.key(write.step)})

    def _send(self, method: str, token: Token, **what: Any) -> requests.Response:
        self._session.mount(self._url + "/", FencedAdapter(token))
        reply = self._session.request(method, f"{self._url}/{token.job_id}", timeout=TIMEOUT, **what)
        reply.raise_for_status()
        return reply


class ForeignService(Service):
    """A service of the user's, of which nothing is asked but to take a POST: nobody reads what it did."""

    def read(self, token: Token) -> Seen:
        return Seen(None, 0)


def detoured(url: str, address: tuple[str, int], name: str) -> str:
    """Return a libpq URI of the same server by way of another address; its name stays, for TLS."""
    parts = urlsplit(url)
    credentials, _, _ = parts.netloc.rpartition("@")
    netloc = f"{credentials}@{parts.hostname}:{address[1]}"
    more = f"hostaddr={address[0]}&connect_timeout=5&application_name={name}"
    query = f"{parts.query}&{more}" if parts.query else more
    return parts._replace(netloc=netloc, query=query).geturl()
