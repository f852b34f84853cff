"""A user's program in threads, to be checked and not run: what each call is, and what is to be refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import psycopg
import requests
from mypy_boto3_s3 import S3Client
from sqlalchemy import Connection, Engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from sinkfence import Lease, LeaseHeld, Leases, StaleToken, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_http import Fence, HostGate, SignedTokens, TokenSigner, VerificationKey
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_http.wsgi import FencingMiddleware
from sinkfence_postgres import PostgresSink, bind, fenced_execute, guard, once, transaction
from sinkfence_s3 import FencedBucket, FencedObject, Stat, Written

ORDERS = "https://orders.example/"


class Base(DeclarativeBase):
    """The user's tables."""


class Entry(Base):
    """A row."""

    __tablename__ = "entry"
    id: Mapped[int] = mapped_column(primary_key=True)


def work(engine: Engine, client: S3Client, http: requests.Session, sign: TokenSigner, dsn: str) -> None:
    """Hold a job, and write to all three destinations."""
    leases = Leases(SqlStore(engine), ttl=30)
    ledger = PostgresSink(engine)
    report = assert_type(FencedBucket(client, "reports").object("totals.csv"), FencedObject)
    with leases.hold("reports", arm=[ledger, report, HttpSink(http, ORDERS, sign=sign)]) as lease:
        assert_type(lease, Lease)
        assert_type(lease.token, Token)
        in_postgres(engine, dsn, lease)
        in_s3(report, lease)
        http.mount(ORDERS, FencedAdapter(lease, sign=sign))
    ledger.arm(leases.hold("reports"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def in_postgres(engine: Engine, dsn: str, lease: Lease) -> None:
    """What is entered comes back as what it is, of whatever kind."""
    with Session(engine) as session, transaction(session, lease) as same:
        assert_type(same, Session)
        assert_type(once(session, lease, "render 2026-05-01", lambda: {"rows": 1}), Any)
        assert_type(fenced_execute(session, insert(Entry), lease), int)
    with psycopg.connect(dsn) as raw, transaction(raw, lease, lease.token) as of_psycopg:
        assert_type(of_psycopg, psycopg.Connection[tuple[Any, ...]])
    with engine.connect() as conn, transaction(conn, lease) as of_engine:
        assert_type(of_engine, Connection)
    registry = scoped_session(sessionmaker(engine))
    with transaction(registry, lease):
        guard(registry, lease)
    assert_type(bind(sessionmaker(engine), lease), sessionmaker[Session])
    transaction(engine, lease)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    guard(conn, 8)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def in_s3(report: FencedObject, lease: Lease) -> None:
    """Put, write and read."""
    written = report.put(b"rows", lease, step="total 2026-05")
    assert_type(written, Written)
    assert_type(written.generation, int | None)  # None of a put_once
    with report.open(lease) as file:
        file.write(b"more rows")
    assert_type(report.get().read(), bytes)
    assert_type(report.stat(), Stat | None)
    report.put(b"rows")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    report.put("rows", lease)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def serve(app: Any, keys: Mapping[str, VerificationKey], environ: dict[str, Any]) -> Token | float:
    """Mount the door, and ask it for a request's token."""
    fence = Fence(HostGate("/var/lib/orders"), SignedTokens(keys, audience="orders"))
    FencingMiddleware(app, fence)
    try:
        return assert_type(fence.admit(environ, "account-17"), Token)
    except StaleToken as stale:
        assert_type(stale.token, Token)
        raise
    except LeaseHeld as held:
        return held.retry_after
