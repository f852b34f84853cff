"""The three destinations as a worker uses them: arm, read, then write what builds on what was read.

Each can be gone round as well (`fenced=False`): a run has to notice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, Protocol
from urllib.parse import quote, urlsplit

import psycopg
import requests

from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, once, transaction
from sinkfence_s3 import FencedBucket
from sinkfence_trials.torture.places import Bucket, with_query

SINKS: Final = ("postgres", "s3", "http")

TIMEOUT: Final = 2.0
"""Seconds after which a worker takes an answer for lost."""

KEPT: Final = 64
"""How many effects an object shows: more than are made between two looks of the observer."""

SETTINGS: Final[tuple[LiteralString, ...]] = (
    "SET idle_in_transaction_session_timeout = '1s'",
    "SET lock_timeout = '3s'",
)
"""What bounds the wait for an owner that is frozen inside a transaction: without it, its whole pause."""

INSERT: Final = """
    INSERT INTO torture_entry (job_id, generation, owner, id, base, key, filling)
    VALUES (%s, %s, %s, %s, %s, %s, %s)"""

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
    filling: bytes = b""


class Destination(Protocol):
    """One of the three; it is a `Sink`, too."""

    durable: bool
    fenced: bool
    """Whether it is asked by way of the library, or gone round."""

    def arm(self, bearer: Bearer) -> None:
        """Say that this is the owner now."""
        ...

    def read(self, token: Token) -> Seen:
        """Look at what the job has had so far."""
        ...

    def write(self, token: Token, write: Write) -> str:
        """Have the effect; return the id of the attempt that had it, as far as that is told."""
        ...


class Ledger:
    """A table, in transactions that are refused at their COMMIT. One connection, until it breaks."""

    durable: bool = True

    def __init__(self, dsn: str, settings: tuple[LiteralString, ...] = (), *, fenced: bool = True) -> None:
        self._dsn, self._settings = dsn, settings
        self.fenced: bool = fenced
        self._conn: psycopg.Connection[Any] | None = None

    def arm(self, bearer: Bearer) -> None:
        PostgresSink(self._dsn).arm(bearer)

    def read(self, token: Token) -> Seen:
        query = "SELECT (array_agg(id ORDER BY seq DESC))[1], count(*) FROM torture_entry WHERE job_id = %s"
        with self._connection() as conn, conn.transaction():
            row = conn.execute(query, (token.job_id,)).fetchone()
        assert row is not None
        return Seen(*row)

    def write(self, token: Token, write: Write) -> str:
        key = token.key(write.step)
        row = (token.job_id, token.generation, token.owner, write.id, write.base.last, key, write.filling)
        with self._connection() as conn:

            def insert() -> str:
                conn.execute(INSERT, row)
                return write.id

            if not self.fenced:
                with conn.transaction():
                    return insert()
            with transaction(conn, token):
                return str(once(conn, token, write.step, insert))

    def _connection(self) -> _Kept:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._dsn, prepare_threshold=None)  # a pooler may be in between
            if self._settings:
                with self._conn.transaction():
                    for setting in self._settings:
                        self._conn.execute(setting)
        return _Kept(self._conn)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A connection for a `with`: one that ends in an error is closed."""

    conn: psycopg.Connection[Any]

    def __enter__(self) -> psycopg.Connection[Any]:
        return self.conn

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.conn.close()


class Documents:
    """An object for each job, which holds its own last effects."""

    durable: bool = True

    def __init__(self, bucket: Bucket, timeout: float = TIMEOUT, *, fenced: bool = True) -> None:
        self.fenced: bool = fenced
        client = bucket.client(
            connect_timeout=TIMEOUT, read_timeout=timeout, retries={"total_max_attempts": 1}
        )
        client.meta.events.register_last("before-call.s3", self._as_it_is_sent)
        self._bucket = FencedBucket(client, bucket.name, probe="never")  # a trial has tried it

    def _as_it_is_sent(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        # After `Expect: 100-continue` a client keeps its body back: what is held is to be the whole request.
        params["headers"].pop("Expect", None)
        if not self.fenced and model.name == "PutObject":
            for name in ("If-Match", "If-None-Match"):
                params["headers"].pop(name, None)

    def arm(self, bearer: Bearer) -> None:
        self._object(bearer.token).arm(bearer)

    def read(self, token: Token) -> Seen:
        try:
            found = json.load(self._object(token).get())
        except KeyError:
            return Seen(None, 0)
        return Seen(found["log"][-1]["id"], found["count"], found["log"])

    def write(self, token: Token, write: Write) -> str:
        entry = {
            "id": write.id,
            "generation": token.generation,
            "owner": token.owner,
            "base": write.base.last,
            "key": token.key(write.step),
        }
        body = {"count": write.base.count + 1, "log": [*write.base.log, entry][-KEPT:]}
        self._object(token).put(json.dumps(body).encode(), token, step=write.step)
        return write.id

    def _object(self, token: Token) -> Any:
        return self._bucket.object(token.job_id)


class Service:
    """A service behind its door."""

    durable: bool = True

    def __init__(self, url: str, timeout: float = TIMEOUT, *, fenced: bool = True) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout
        self.fenced: bool = fenced
        self._session = requests.Session()
        self._session.trust_env = False
        self._mounted: Token | None = None

    def arm(self, bearer: Bearer) -> None:
        HttpSink(self._session, self._url).arm(bearer)

    def read(self, token: Token) -> Seen:
        found = self._send("GET", token).json()
        return Seen(found["last"], found["count"])

    def write(self, token: Token, write: Write) -> str:
        return str(self._post(token, write).json()["applied"])

    def _post(self, token: Token, write: Write) -> requests.Response:
        said = {"id": write.id, "base": write.base.last}
        headers = {wire.IDEMPOTENCY_KEY: token.key(write.step)}
        if not self.fenced:
            headers[wire.TOKEN] = wire.format_token(token)
        return self._send("POST", token, json=said, headers=headers)

    def _send(self, method: str, token: Token, **what: Any) -> requests.Response:
        if self.fenced and self._mounted != token:
            self._session.mount(self._url + "/", FencedAdapter(token))
            self._mounted = token
        reply = self._session.request(method, f"{self._url}/{token.job_id}", timeout=self._timeout, **what)
        reply.raise_for_status()
        return reply


class ForeignService(Service):
    """A service of the user's, of which nothing is asked but to take a POST: nobody reads what it did."""

    def read(self, token: Token) -> Seen:
        return Seen(None, 0)

    def write(self, token: Token, write: Write) -> str:
        self._post(token, write)
        return write.id


def detoured(url: str, address: tuple[str, int], name: str) -> str:
    """Return a libpq URI of the same server by way of another address; its name stays, for TLS."""
    parts = urlsplit(url)
    credentials, _, _ = parts.netloc.rpartition("@")
    there = parts._replace(netloc=f"{credentials}@{parts.hostname}:{address[1]}").geturl()
    return named(with_query(there, f"hostaddr={address[0]}&connect_timeout=5"), name)


def named(url: str, name: str) -> str:
    """Return a libpq URI whose sessions bear a name in pg_stat_activity."""
    return with_query(url, f"application_name={quote(name)}")
