"""What each sink tells to logging and to OpenTelemetry's SDK, and what none ever tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psycopg
import pytest
import requests
from sqlalchemy import Engine, create_engine, text

import sinkfence_postgres.aio
from sinkfence import GenerationConflict, LeaseLost, StaleToken, Token, aio
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql.aio import SqlStore as AsyncSqlStore
from sinkfence_http import Fence, HostGate, SignedTokens, TokenSigner, VerificationKey, wsgi
from sinkfence_http.requests_adapter import FencedAdapter
from sinkfence_postgres import PostgresSink
from sinkfence_s3 import FencedBucket

JOB = "invoice-42"
NEW, SAME, OLD = Token(JOB, 2, "b:2"), Token(JOB, 2, "c:3"), Token(JOB, 1, "a:1")


def refused_by(seen: Any, sink: str) -> None:
    """Look that a sink was armed twice, refused once, and told so once."""
    spans = [
        (span.name, span.attributes["sinkfence.generation"]) for span in seen.exporter.get_finished_spans()
    ]
    assert spans == [(f"arm {sink}", (2,)), (f"arm {sink}", (1,)), (f"write {sink}", (1,))]
    assert seen.metrics()["sinkfence.sink.refusals {refusal}"] == [
        ({"sinkfence.sink": sink, "error.type": "StaleToken"}, 2)
    ]


@pytest.mark.parametrize("loop", [False, True])
def test_a_database_tells_what_it_refuses(seen: Any, dsn: str, loop: bool) -> None:
    """Arming and guarded transactions, by threads and in an event loop."""
    new, old = Token(JOB, 2, "b:2"), Token(JOB, 1, "a:1")
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
    sink: Any = (sinkfence_postgres.aio if loop else sinkfence_postgres).PostgresSink(dsn)

    async def begin_in_loop() -> None:
        async with sink.begin(old):
            pytest.fail("the block must not run")

    def begin() -> None:
        with sink.begin(old):
            pytest.fail("the block must not run")

    def arm(token: Token) -> None:
        asyncio.run(sink.arm(token)) if loop else sink.arm(token)

    arm(new)
    with pytest.raises(StaleToken):
        arm(old)
    with pytest.raises(StaleToken):
        asyncio.run(begin_in_loop()) if loop else begin()
    refused_by(seen, "postgres")


def test_a_bucket_tells_what_it_refuses(seen: Any, s3_client: Any, bucket_name: str, prefix: str) -> None:
    """Arming and putting."""
    thing = FencedBucket(s3_client, bucket_name, prefix=prefix).object("report")
    thing.arm(Token(JOB, 2, "b:2"))
    for write in (thing.arm, partial(thing.put, b"late")):
        with pytest.raises(StaleToken):
            write(Token(JOB, 1, "a:1"))
    refused_by(seen, "s3")


@pytest.fixture
def ledger_sink(dsn: str) -> PostgresSink:
    """A database that marks are kept in."""
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
    return PostgresSink(dsn)


def test_a_number_issued_twice_is_told_by_its_own_name(
    seen: Any, ledger_sink: PostgresSink, s3_client: Any, bucket_name: str, prefix: str
) -> None:
    """GenerationConflict is what an alert asks for: by each sink, and not as StaleToken."""
    thing = FencedBucket(s3_client, bucket_name, prefix=prefix).object("report")
    for sink in (ledger_sink, thing):
        sink.arm(NEW)
        with pytest.raises(GenerationConflict):
            sink.arm(SAME)
    assert seen.metrics()["sinkfence.sink.refusals {refusal}"] == [
        ({"sinkfence.sink": sink, "error.type": "GenerationConflict"}, 1) for sink in ("postgres", "s3")
    ]
    failed = [span for span in seen.exporter.get_finished_spans() if not span.status.is_ok]
    assert [(span.name, span.status.description) for span in failed] == [
        (f"arm {sink}", "sinkfence.errors.GenerationConflict") for sink in ("postgres", "s3")
    ]


def test_what_is_admitted_is_a_span_without_an_error(
    seen: Any, ledger_sink: PostgresSink, s3_client: Any, bucket_name: str, prefix: str
) -> None:
    """Transactions, puts and deletes of the owner; none of them counts as a refusal."""
    thing = FencedBucket(s3_client, bucket_name, prefix=prefix).object("report")
    ledger_sink.arm(NEW)
    with ledger_sink.begin(NEW) as conn:
        conn.execute("SELECT 1")
    thing.put(b"rows", NEW)
    thing.delete(NEW)
    told = [(span.name, span.status.is_ok) for span in seen.exporter.get_finished_spans()]
    assert told == [(f"{act}", True) for act in ("arm postgres", "write postgres", "write s3", "write s3")]
    assert "sinkfence.sink.refusals {refusal}" not in seen.metrics()


class Quiet(WSGIRequestHandler):
    """It writes no line for each request."""

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def key() -> Any:
    """What the workers sign with."""
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519.Ed25519PrivateKey.generate()


@pytest.fixture
def service(key: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a service behind a door, in this process."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        fence.admit(environ, JOB)
        start_response("200 OK", [("Content-Length", "0")])
        return [b""]

    known = VerificationKey(key=key.public_key(), alg="EdDSA", issuer="workers")
    fence = Fence(HostGate(tmp_path), SignedTokens({"k1": known}, audience="orders"))
    with make_server("127.0.0.1", 0, wsgi.FencingMiddleware(app, fence), handler_class=Quiet) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def post(key: Any, service: str) -> Callable[..., Any]:
    """Ask the service under a token, and return its answer."""
    sign = TokenSigner(key, kid="k1", alg="EdDSA", issuer="workers", audience="orders")

    def ask(token: Token, alter: Callable[[str], str] = str) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            session.mount(service, FencedAdapter(token, sign=lambda each: alter(sign(each))))
            return session.post(service, data=b"1")

    return ask


def test_both_ends_of_a_call_tell_what_was_refused(seen: Any, post: Callable[..., Any]) -> None:
    """The door when it turns a request away, and the caller when it hears of it."""
    assert post(NEW).status_code == 200
    with pytest.raises(StaleToken):
        post(OLD)
    with pytest.raises(GenerationConflict):
        post(SAME)
    assert sorted(
        (point["error.type"], count)
        for point, count in seen.metrics()["sinkfence.sink.refusals {refusal}"]
        if point["sinkfence.sink"] == "http"
    ) == [("GenerationConflict", 2), ("StaleToken", 2)]


def everything_told(seen: Any, caplog: Any) -> str:
    """All that a log, a trace and the metrics have, as text."""
    records = "".join(str(vars(record)) + logging.Formatter().format(record) for record in caplog.records)
    return (
        records + "".join(span.to_json() for span in seen.exporter.get_finished_spans()) + str(seen.metrics())
    )


def test_no_signature_is_told(seen: Any, post: Callable[..., Any], caplog: Any) -> None:
    """Of tokens that are admitted, stale or forged, neither end tells what was on the wire."""
    caplog.set_level(logging.DEBUG, "sinkfence")
    sent: list[str] = []

    def keep(jws: str) -> str:
        sent.append(jws)
        return jws

    def forge(jws: str) -> str:
        return keep(jws[:-8] + ("A" * 8))

    for token, alter in ((NEW, keep), (OLD, keep), (SAME, keep), (Token(JOB, 3, "d:4"), forge)):
        with suppress(StaleToken):
            post(token, alter)
    told = everything_told(seen, caplog)
    assert "stale" in told
    assert len(sent) == 4
    parts = [part for jws in sent for part in jws.strip('"').split(".")]
    assert [part for part in parts if part in told] == []


def test_no_password_is_told(seen: Any, ledger_sink: PostgresSink, caplog: Any, dsn: str) -> None:
    """A database that can't be reached, or that fails in mid-write, leaves no password or parameter."""
    caplog.set_level(logging.DEBUG, "sinkfence")
    nowhere = "postgresql://app:open-sesame@127.0.0.1:1/shop?connect_timeout=5"
    for sink in (PostgresSink(nowhere), PostgresSink(create_engine(nowhere.replace("://", "+psycopg://")))):
        with pytest.raises(Exception, match="refused"):
            sink.arm(NEW)
    ledger_sink.arm(NEW)
    engine: Engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(Exception, match="hunter2"), PostgresSink(engine).begin(NEW) as conn:
        conn.execute(text("SELECT CAST(:secret AS integer)"), {"secret": "hunter2"})
    engine.dispose()
    told = everything_told(seen, caplog)
    assert "arm postgres" in told
    assert "write postgres" in told
    assert [secret for secret in ("open-sesame", "hunter2") if secret in told] == []


def test_an_event_loops_leases_tell_the_same(seen: Any, lite: SqlStore, lite_url: str) -> None:
    """Acquired, renewed and lost under asyncio."""

    async def work() -> None:
        async with aio.Leases(AsyncSqlStore(lite_url)) as leases:
            lease = await leases.acquire(JOB)
            await lease.renew()
            lite.reopen(JOB)
            lite.acquire(JOB, "b:2", 30.0)
            with pytest.raises(LeaseLost):
                await lease.renew()

    asyncio.run(work())
    assert seen.metrics() == {
        "sinkfence.lease.acquisitions {acquisition}": [({}, 1)],
        "sinkfence.lease.renewals {renewal}": [({}, 1)],
        "sinkfence.lease.losses {loss}": [({"error.type": "LeaseLost"}, 1)],
    }
