"""Where the sweep takes owners: each real destination through its real client, and each without its check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
import psycopg
import requests
from botocore.config import Config
from sweep import Diary, Effect

from sinkfence.errors import JobCompleted, StaleToken
from sinkfence.stores.sql import SqlStore
from sinkfence.tokens import Token
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_s3 import FencedBucket

TABLE = "create table effect (seq bigserial, job text, generation bigint, owner text, id text)"
INSERT = "insert into effect (job, generation, owner, id) values (%s, %s, %s, %s)"


def by_way_of(url: str, address: tuple[str, int]) -> str:
    """The same URL, by another address; without the encryptions that would be tried first."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    query = "sslmode=disable&gssencmode=disable"
    return parts._replace(netloc=f"{login}@{address[0]}:{address[1]}", query=query).geturl()


def upstream_of(url: str) -> tuple[str, int]:
    """Where the server of a URL listens."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@dataclass
class Postgres:
    """A table whose transactions are guarded."""

    dsn: str
    observer: psycopg.Connection[Any]
    """Reads the truth; in autocommit."""

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.dsn)

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        dsn = by_way_of(self.dsn, address)
        with diary.arming(token):
            PostgresSink(dsn).arm(token)
        with psycopg.connect(dsn) as conn, diary.writing(token) as attempt:
            self.write(conn, token, attempt)

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str) -> None:
        with transaction(conn, token):
            conn.execute(INSERT, (token.job_id, token.generation, token.owner, attempt))

    def truth(self, job: str) -> list[Effect]:
        with psycopg.connect(self.dsn) as conn:
            rows = conn.execute(
                "select generation, owner, id from effect where job = %s order by seq", (job,)
            )
            return [Effect(*row) for row in rows]


class SelectCompareWrite(Postgres):
    """The same with the check that suggests itself: read the mark, compare, write."""

    def write(self, conn: psycopg.Connection[Any], token: Token, attempt: str) -> None:
        with conn.transaction():
            row = conn.execute("select max_generation from sinkfence.mark where job_id = %s", (token.job_id,))
            [highest] = row.fetchone() or [0]
            if token.generation < highest:
                raise StaleToken(token, highest)
            conn.execute(INSERT, (token.job_id, token.generation, token.owner, attempt))


@dataclass
class Store:
    """The lease store itself: completing the job is the effect."""

    dsn: str
    observer: psycopg.Connection[Any]

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.dsn)

    def before(self, token: Token, diary: Diary) -> None:
        """Return when the lease has run out by the store's clock, if there is one."""
        query = (
            "select pg_sleep_until(lease_until) from sinkfence_lease where job_id = %s and owner is not null"
        )
        self.observer.execute(query, (token.job_id,))

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        ttl = 0.05
        store = SqlStore(by_way_of(self.dsn, address).replace("postgresql:", "postgresql+psycopg:", 1))
        try:
            until = store.acquire(token.job_id, token.owner, ttl)
            mine, end = until.token, until.lease_until.timestamp()
            diary.add("acquire", "ok", mine, now=end - ttl, until=end, ttl=ttl)
            end = store.renew(mine, ttl).timestamp()
            diary.add("renew", "ok", mine, now=end - ttl, until=end, ttl=ttl)
            with diary.writing(mine) as attempt:
                store.complete(mine, json.dumps({"id": attempt}))
            diary.add("complete", "ok", mine, now=self.now())
        except JobCompleted:
            pass  # the other one had done it
        finally:
            store.close()

    def now(self) -> float:
        """The store's clock."""
        row = self.observer.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
        assert row is not None
        return float(row[0])

    def truth(self, job: str) -> list[Effect]:
        query = "select generation, owner, result from sinkfence_lease where job_id = %s and state = 'done'"
        rows = self.observer.execute(query, (job,))
        return [Effect(generation, owner, _json(result)["id"]) for generation, owner, result in rows]


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@dataclass
class Bucket:
    """A fenced object. The truth is the last payload, found in the bucket's bytes without our reader."""

    endpoint: str
    keys: dict[str, str]
    bucket: str
    prefix: str

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.endpoint)

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def client(self, address: tuple[str, int]) -> Any:
        # One attempt of the client's own: what it repeats is by the adapter's decision.
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=60)
        return boto3.client(
            "s3", endpoint_url=f"http://{address[0]}:{address[1]}", config=config, **self.keys
        )

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        client = self.client(address)
        try:
            self.work(client, token, diary)
        finally:
            client.close()

    def work(self, client: Any, token: Token, diary: Diary) -> None:
        report = FencedBucket(client, self.bucket, prefix=self.prefix, probe="never").object(token.job_id)
        with diary.arming(token):
            report.arm(token)
        with diary.writing(token) as attempt:
            report.put(self.body(token, attempt), token)

    def body(self, token: Token, attempt: str) -> bytes:
        return b"<<%d|%s|%s>>" % (token.generation, token.owner.encode(), attempt.encode())

    def truth(self, job: str) -> list[Effect]:
        client = self.client(self.upstream)
        try:
            found = client.get_object(Bucket=self.bucket, Key=self.prefix + job)["Body"].read()
        except client.exceptions.NoSuchKey:
            return []
        finally:
            client.close()
        found = re.findall(rb"<<(\d+)\|(.*?)\|(.*?)>>", found)
        return [Effect(int(generation), owner.decode(), id.decode()) for generation, owner, id in found]


class HeadThenPut(Bucket):
    """The same by hand: look whether a newer one was here, then put."""

    def work(self, client: Any, token: Token, diary: Diary) -> None:
        with diary.writing(token) as attempt:
            last = self.truth(token.job_id)
            if last and last[0].generation > token.generation:
                raise StaleToken(token, last[0].generation)
            key, body = self.prefix + token.job_id, self.body(token, attempt)
            client.put_object(Bucket=self.bucket, Key=key, Body=body)


@dataclass
class Service:
    """A service behind the door, that writes to PostgreSQL; `url` is where it is served."""

    url: str
    table: Postgres

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.url)

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        url = f"http://{address[0]}:{address[1]}"
        with requests.Session() as session:
            session.trust_env = False
            with diary.arming(token):
                HttpSink(session, url).arm(token)
            session.mount(url, FencedAdapter(token))
            for _ in range(2):
                with diary.writing(token) as attempt:
                    session.post(f"{url}/{token.job_id}", data=attempt, timeout=60).raise_for_status()

    def truth(self, job: str) -> list[Effect]:
        return self.table.truth(job)


def application(dsn: str, fence: Any) -> Callable[..., Iterator[bytes]]:
    """The service: one row per request, in a guarded transaction."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        token = fence.admit(environ, environ["PATH_INFO"].lstrip("/"))
        attempt = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
        with psycopg.connect(dsn) as conn, transaction(conn, token):
            conn.execute(INSERT, (token.job_id, token.generation, token.owner, attempt))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([b"done"])

    return app
