"""Every Python block of the README and the pages runs, on real servers, and does what its page says."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI, Request
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sinkfence import Leases, StaleToken, Token, observe
from sinkfence.stores.sql import SqlStore
from sinkfence_http import Refused, TokenSigner, TrustedNetwork, VerificationKey
from sinkfence_http.aio import Fence
from sinkfence_http.asgi import FencingMiddleware
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import aio, marks, transaction
from sinkfence_s3 import FencedBucket
from sinkfence_trials.servers.supervised import Supervised

ROOT = Path(__file__).parents[2]
RunPage = Callable[..., dict[str, Any]]

RUN_ELSEWHERE = {
    "docs/reference/s3-object-format.md",  # by the tests of the format
    "docs/how-to/check-a-database.md",  # by test_database_pages
    "docs/how-to/install-with-alembic.md",
    "docs/how-to/move-a-mixed-fleet.md",
    "docs/how-to/protect-tables.md",
    "docs/how-to/restore-a-destination.md",
    "docs/how-to/foreign-counters.md",  # by test_lease_pages
    "docs/how-to/lead-for-ever.md",
    "docs/how-to/shut-down.md",
    "docs/how-to/workers.md",
    "docs/how-to/keep-a-bucket-tidy.md",
    "docs/how-to/send-readers-to-s3.md",
    "docs/how-to/use-pandas-and-arrow.md",
}
RUN_HERE = {
    "docs/how-to/asyncio.md",
    "docs/how-to/observe.md",
    "docs/how-to/prepare.md",
    "README.md",
    "docs/index.md",
    "docs/how-to/answer-repeated-requests.md",
    "docs/how-to/fence-without-a-database.md",
    "docs/explanation/etag-hole.md",
    "docs/explanation/the-rule.md",
    "docs/how-to/bind-sessions-to-a-lease.md",
    "docs/how-to/call-a-fenced-service.md",
    "docs/how-to/call-with-httpx.md",
    "docs/how-to/check-a-bucket.md",
    "docs/how-to/check-a-service.md",
    "docs/how-to/check-your-own-sink.md",
    "docs/how-to/do-a-step-once.md",
    "docs/how-to/guard-each-kind-of-writer.md",
    "docs/how-to/guard-your-transactions.md",
    "docs/how-to/hold-a-lease.md",
    "docs/how-to/keep-the-generation-in-rows.md",
    "docs/how-to/mount-the-door.md",
    "docs/how-to/name-jobs-and-steps.md",
    "docs/how-to/recover-a-store.md",
    "docs/how-to/rotate-keys.md",
    "docs/how-to/start-with-sqlite.md",
    "docs/how-to/test-guarded-code.md",
}


@pytest.fixture
def leases(engine: Engine) -> Iterator[Leases]:
    """A manager of leases in the page's database."""
    with Leases(SqlStore(engine), ttl=30) as leases:
        yield leases


@pytest.fixture
def reports(s3_server: Any, bucket_name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `boto3.client("s3")` finds in the environment, and the bucket to put for the page's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", s3_server.region)
    return {'"reports"': repr(bucket_name)}


def entries(engine: Engine, table: str = "entry", column: str = "text") -> list[Any]:
    """The values of a column, in the order in which they were written."""
    with engine.connect() as conn:
        return list(conn.exec_driver_sql(f"SELECT {column} FROM {table} ORDER BY id").scalars())


def shown(page: str) -> str:
    """The first output that a page shows."""
    return (ROOT / page).read_text().partition("```text\n")[2].partition("```")[0]


def test_every_page_with_examples_is_run() -> None:
    """No page has a Python block that no test runs."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    with_blocks = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    elsewhere = ("docs/tutorial/", "docs/reference/errors/")  # by test_tutorials and test_error_pages
    left = {page for page in with_blocks if not page.startswith(elsewhere)}
    assert left == RUN_HERE | RUN_ELSEWHERE


def test_readme(
    run_page: RunPage,
    engine: Engine,
    common: ModuleType,
    serve: Callable[[Any], str],
    reports: dict[str, str],
    prefix: str,
) -> None:
    """The README's five lines each for Postgres, HTTP and S3 write one row, one payment, one object."""
    key = Ed25519PrivateKey.generate()
    names = run_page(
        "README.md",
        replace={
            '"monthly/"': repr(prefix),
            **reports,
            '"https://orders.example/"': 'serve(app) + "/"',
        },
        engine=engine,
        async_engine=create_async_engine(engine.url, poolclass=NullPool),
        Entry=common.Entry,
        Payment=common.Payment,
        serve=serve,
        keys={"1": VerificationKey(key=key.public_key(), alg="EdDSA", issuer="workers")},
        sign=TokenSigner(key, kid="1", alg="EdDSA", issuer="workers", audience="orders"),
    )
    names["http"].close()
    names["leases"].close()
    assert entries(engine) == ["rendered"]
    assert entries(engine, "payment", "account") == [17]


def test_the_first_page(
    run_page: RunPage,
    engine: Engine,
    common: ModuleType,
    s3_client: Any,
    bucket_name: str,
    prefix: str,
) -> None:
    """Its examples are those of the README, with the names that they take for granted."""
    app, fence = FastAPI(), Fence(aio.PostgresSink("dbname=orders"), TrustedNetwork())
    names = {"Session": Session, "transaction": transaction, "Request": Request, "AsyncSession": AsyncSession}
    totals = FencedBucket(s3_client, bucket_name, prefix=prefix).object("totals.csv")
    run_page(
        "docs/index.md",
        **names,
        Entry=common.Entry,
        Payment=common.Payment,
        engine=engine,
        leases=common.leases,
        ledger=common.ledger,
        app=app,
        fence=fence,
        totals=totals,
    )
    assert entries(engine) == ["rendered"]
    page, readme = ((ROOT / page).read_text() for page in ("docs/index.md", "README.md"))
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert [block for block in blocks if block.strip() not in readme] == []


def test_answer_repeated_requests_of_two_customers(
    run_page: RunPage, engine: Engine, signing: ModuleType
) -> None:
    """Bob's payment under the key that ann has used is his own, also where no answer was kept."""
    names = run_page("docs/how-to/answer-repeated-requests.md")
    names["app"].wsgi_app._fence = names["by_customer"]  # mounted instead of the first one
    client = names["app"].test_client()

    def pay(customer: str, key: str) -> tuple[str, Any]:
        headers = {
            "Fencing-Token": signing.sign(Token("account-17", 7, "worker-a:1f0c")),
            "Idempotency-Key": key,
        }
        answer = client.post("/accounts/17", headers=headers, environ_overrides={"customer": customer})
        return answer.headers["Fencing-Status"], answer.json

    assert pay("ann", "k") == ("accepted", {"payment": 2})  # the page has made the first one
    assert pay("bob", "k") == ("accepted", {"payment": 3})
    with engine.begin() as db:
        db.execute(text("delete from sinkfence.ledger where scope like 'http:%'"))
    assert pay("ann", "k") == ("accepted", {"payment": 2})
    assert pay("bob", "k") == ("accepted", {"payment": 3})
    assert pay("ann", "k" * 255) == ("accepted", {"payment": 4})


def test_a_step_of_a_request_without_a_key(run_page: RunPage, engine: Engine, signing: ModuleType) -> None:
    """It has none: 400, and nothing is paid."""
    names = run_page("docs/how-to/answer-repeated-requests.md")
    headers = {"Fencing-Token": signing.sign(Token("account-17", 7, "worker-a:1f0c"))}
    answer = names["app"].test_client().post("/accounts/17", headers=headers)
    assert (answer.status_code, answer.headers["Fencing-Status"]) == (400, "idempotency-key-required")
    assert entries(engine, "payment", "account") == [18], "the page's own"


def test_the_rule(run_page: RunPage) -> None:
    """The rule's own example refuses 7 after 8."""
    run_page("docs/explanation/the-rule.md")


def test_etag_hole(
    run_page: RunPage, reports: dict[str, str], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace lets a stale write through on a plain object, and on a fenced one S3 refuses it."""
    names = run_page("docs/explanation/etag-hole.md", replace={**reports, '"daily/': f'"{prefix}'})
    names["client"].close()
    assert capsys.readouterr().out.startswith(
        "generation 7 of job 'stock' is stale: generation 8 has been seen"
    )


def test_check_a_bucket(
    run_page: RunPage,
    reports: dict[str, str],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The report of the real server goes on as the page's does."""
    monkeypatch.setattr(sys.modules["sinkfence_s3.doctor"], "ROUNDS", 1)
    run_page("docs/how-to/check-a-bucket.md", replace={**reports, "daily/": prefix})
    text = (ROOT / "docs/how-to/check-a-bucket.md").read_text()
    shown = text.partition("```text\n")[2].partition("```")[0].splitlines()
    assert capsys.readouterr().out.splitlines()[1 : len(shown)] == shown[1:]


def test_hold_a_lease(run_page: RunPage, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker writes at each turn, and finds a completed job completed."""
    run_page("docs/how-to/hold-a-lease.md")
    assert entries(engine) == ["report of 2026-05-01", "a", "b", "c", "invoice 42", "invoice 43"]
    assert capsys.readouterr().out.startswith(shown("docs/how-to/hold-a-lease.md"))


def test_asyncio(run_page: RunPage, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The asynchronous worker writes its row, and hears of a loss in its loop."""
    run_page("docs/how-to/asyncio.md")
    assert entries(engine) == ["report of 2026-05-01"]
    assert capsys.readouterr().out.startswith("written: report of 2026-05-01\n")


def test_observe(
    run_page: RunPage, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The formatter shows the job of a record, and the SDK's reader what was measured."""
    caplog.set_level(logging.WARNING, "sinkfence")  # the page's level ends with the test
    names = run_page("docs/how-to/observe.md")
    out, err = capsys.readouterr()
    page = (ROOT / "docs/how-to/observe.md").read_text()
    logged, measured = (block.partition("```")[0] for block in page.split("```text\n")[1:])
    assert err.startswith(logged)
    assert set(measured.splitlines()) <= set(out.splitlines())
    observe.lost(Token("reports/latest", 7, "worker-a:1f0c"), StaleToken(Token("j", 1, "a"), 2))
    logging.getLogger("sinkfence").removeHandler(names["handler"])
    assert names["handler"].format(caplog.records[-1]).endswith(" [reports/latest g=7]")


def test_prepare(run_page: RunPage, signing: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files, one after the other, make a database and keys that the other pages can use."""
    # The grant holds for the whole server, where other tests ask the doctor. The tutorials run it.
    names = run_page("docs/how-to/prepare.md", replace={"GRANT sinkfence_writer TO CURRENT_USER": "SELECT 1"})
    assert capsys.readouterr().out == "ready\nthe keys fit\narmed: generation 1\n"
    with names["engine"].connect() as conn:
        [mark] = marks(conn)
    lease = names["lease"]
    assert (mark.job_id, mark.generation) == (lease.job_id, lease.generation)
    armed = Token(mark.job_id, mark.generation, mark.owner)
    with names["engine"].connect() as conn, transaction(conn, armed):
        assert names["verifier"] is signing.verifier
    assert names["store"].get(lease.job_id).owner is None, "the next page finds the job free"
    names["engine"].dispose()


def test_name_jobs_and_steps(run_page: RunPage) -> None:
    """Two owners derive one key for one step, and another for the next occasion."""
    run_page("docs/how-to/name-jobs-and-steps.md")


def test_mount_the_door(run_page: RunPage, engine: Engine, signing: ModuleType) -> None:
    """The Flask service pays for the newest owner, refuses an older one, and a call without a token."""
    names = run_page("docs/how-to/mount-the-door.md")
    client = names["app"].test_client()

    def pay(token: Token | None) -> tuple[int, str]:
        headers = {} if token is None else {"Fencing-Token": signing.sign(token)}
        answer = client.post("/accounts/17", headers=headers)
        return answer.status_code, answer.headers["Fencing-Status"].partition(";")[0]

    assert pay(Token("account-17", 8, "worker-b:99ab")) == (200, "accepted")
    assert pay(Token("account-17", 7, "worker-a:1f0c")) == (412, "stale-token")
    assert pay(None) == (428, "token-required")
    assert entries(engine, "payment", "account") == [17]


def test_the_door_is_served(
    common: ModuleType, signing: ModuleType, server: Callable[..., AbstractContextManager[int]]
) -> None:
    """The first snippet, saved and served as the page says, has a door before it."""
    page, folder = (ROOT / "docs/how-to/mount-the-door.md").read_text(), Path(common.__file__ or "").parent
    (folder / "door.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    [typed] = re.findall(r"^\$ flask --app door (run --port) 8000$", page, re.MULTILINE)

    def words(process: Supervised, port: int, second: int) -> list[object]:
        shutil.copytree(folder, process.folder, dirs_exist_ok=True)
        flask = [sys.executable, "-m", "flask", "--app", "door", *typed.split(), port]
        return ["env", f"DATABASE_URL={common.url}", *flask]

    with server("flask", words) as port, requests.Session() as session:
        url = f"http://127.0.0.1:{port}/"
        assert session.post(f"{url}accounts/17", timeout=10).status_code == 428
        arming = HttpSink(session, url, sign=signing.sign)
        with common.leases.hold("account-17", arm=[arming]) as lease:
            session.mount(url, FencedAdapter(lease, sign=signing.sign))
            assert session.post(f"{url}accounts/17", timeout=10).text == "paid"


def test_answer_repeated_requests(run_page: RunPage, engine: Engine, signing: ModuleType) -> None:
    """A repetition is answered as the first time, also by a newer owner, and pays nothing."""
    names = run_page("docs/how-to/answer-repeated-requests.md")
    client = names["app"].test_client()

    def pay(token: Token) -> tuple[str, Any]:
        headers = {"Fencing-Token": signing.sign(token), "Idempotency-Key": token.key("pay order-1881")}
        answer = client.post("/accounts/17", headers=headers)
        return answer.headers["Fencing-Status"], answer.json

    assert pay(Token("account-17", 7, "worker-a:1f0c")) == ("accepted", {"payment": 2})
    assert pay(Token("account-17", 7, "worker-a:1f0c")) == ("accepted;replayed", {"payment": 2})
    assert pay(Token("account-17", 8, "worker-b:99ab")) == ("accepted;replayed", {"payment": 2})
    assert pay(Token("account-17", 7, "worker-a:1f0c"))[0] == "stale-token;current=8"
    assert entries(engine, "payment", "account") == [18, 17]  # the page's own is first


def test_fence_without_a_database(
    run_page: RunPage, signing: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printer prints for the newest owner alone."""
    names = run_page("docs/how-to/fence-without-a-database.md")
    assert capsys.readouterr().out == shown("docs/how-to/fence-without-a-database.md")
    client = names["app"].test_client()

    def label(generation: int) -> str:
        token = Token("order-9", generation, f"worker:{generation}")
        with client.post("/labels/9", headers={"Fencing-Token": signing.sign(token)}) as answer:
            return answer.headers["Fencing-Status"]

    assert [label(7), label(8), label(7)] == ["accepted", "accepted", "stale-token;current=8"]
    assert names["printed"] == [17, 9, 9], "the page's own is first"


@pytest.fixture
def orders(engine: Engine, signing: ModuleType, serve: Callable[[Any], str]) -> tuple[str, list[str]]:
    """A fenced service: its URL, and the idempotency keys that come in."""
    keys: list[str] = []
    async_engine = create_async_engine(engine.url, poolclass=NullPool)
    fence = Fence(aio.PostgresSink(async_engine), signing.verifier)
    app = FastAPI()
    app.add_middleware(FencingMiddleware, fence=fence)

    @app.post("/accounts/{account}")
    async def pay(account: int, request: Request) -> None:
        token = await fence.admit(request.scope, f"account-{account}")
        async with AsyncSession(async_engine) as session, aio.transaction(session, token):
            await session.execute(text("INSERT INTO payment (account) VALUES (:id)"), {"id": account})
        keys.append(request.headers.get("Idempotency-Key", ""))

    return serve(app), keys


def test_call_a_fenced_service(
    run_page: RunPage, engine: Engine, orders: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller's request reaches the service's table, with the key of its step."""
    url, keys = orders
    names = run_page(
        "docs/how-to/call-a-fenced-service.md", replace={'"https://orders.example/"': repr(url + "/")}
    )
    names["http"].close()
    assert capsys.readouterr().out == "accepted\n"
    assert entries(engine, "payment", "account") == [17]
    assert keys == [Token("account-17", 1, "anyone").key("charge order-1881")]


def test_check_a_service(
    run_page: RunPage, orders: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A fenced service passes, and its report is the page's, line for line."""
    url, keys = orders
    run_page("docs/how-to/check-a-service.md", replace={'"https://orders.example/"': repr(url + "/")})
    text = (ROOT / "docs/how-to/check-a-service.md").read_text()
    lines = text.partition("```text\n")[2].partition("```")[0].splitlines()
    shown = capsys.readouterr().out.splitlines()
    assert lines[1:] == shown[1:]  # the first one has the address
    assert keys == [], "no handler ran"


def test_call_with_httpx(run_page: RunPage, engine: Engine, orders: tuple[str, list[str]]) -> None:
    """Three clients write three rows, and two of them say which step it is."""
    service, keys = orders
    run_page("docs/how-to/call-with-httpx.md", replace={'"https://orders.example"': repr(service)})
    token = Token("account-17", 1, "anyone")
    assert entries(engine, "payment", "account") == [17, 17, 17]
    assert keys == [token.key("charge order-1881"), token.key("charge order-1882"), ""]


def test_check_your_own_sink(run_page: RunPage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's notebook is a fence, its careless sister is not; the report begins as it has it."""
    names = run_page("docs/how-to/check-your-own-sink.md")
    text = (ROOT / "docs/how-to/check-your-own-sink.md").read_text()
    assert capsys.readouterr().out.startswith(text.partition("```text\n")[2].partition("```")[0])
    for promise in names["sink_contract"][::6]:
        folder = tmp_path / promise.id
        folder.mkdir()
        with contextlib.suppress(pytest.skip.Exception):
            names["test_notebook"](promise, folder)


def test_recover_a_store(run_page: RunPage) -> None:
    """A count raised by hand goes on above the number given."""
    names = run_page("docs/how-to/recover-a-store.md")
    with names["careful"].hold("reports/latest") as lease:
        assert lease.generation > 1_000_000_000
    names["careful"].close()


def test_rotate_keys(run_page: RunPage, signing: ModuleType) -> None:
    """A token signed with the new key passes once the old key is gone, one with the old key does not."""
    names = run_page("docs/how-to/rotate-keys.md")
    with pytest.raises(Refused):
        names["verifier"].verify(signing.sign(Token("account-17", 8, "worker-b:99ab")))


def test_start_with_sqlite(run_page: RunPage, url: str) -> None:
    """A file counts leases, and its numbers can be carried over to PostgreSQL."""
    names = run_page(
        "docs/how-to/start-with-sqlite.md", replace={"postgresql+psycopg://app@db.example/shop": url}
    )
    for manager in ("leases", "old", "new"):
        names[manager].close()


def test_do_a_step_once(run_page: RunPage, engine: Engine) -> None:
    """Three attempts make one payment."""
    run_page("docs/how-to/do-a-step-once.md")
    assert entries(engine, "payment", "account") == [17]


def test_bind_sessions_to_a_lease(run_page: RunPage, engine: Engine) -> None:
    """Bound sessions and a bound engine write, each in a guarded transaction."""
    run_page("docs/how-to/bind-sessions-to-a-lease.md")
    assert len(entries(engine)) == 3


def test_test_guarded_code(run_page: RunPage, engine: Engine) -> None:
    """The page's test passes, and its fixture deletes what was written."""
    names = run_page("docs/how-to/test-guarded-code.md")
    fixture = names["lease"].__wrapped__()
    names["test_a_late_worker_is_refused"](next(fixture))
    assert entries(engine) == ["rendered"]
    assert list(fixture) == []
    assert entries(engine) == []


def test_keep_the_generation_in_rows(run_page: RunPage, engine: Engine) -> None:
    """The successor's invoices stand, one of them as a tombstone."""
    run_page("docs/how-to/keep-the-generation-in-rows.md")
    assert entries(engine, "invoice", "total") == [41, 7]
    assert entries(engine, "invoice", "deleted_at IS NULL") == [True, False]


def test_guard_each_kind_of_writer(run_page: RunPage, engine: Engine) -> None:
    """Each kind of writer commits its row."""
    names = run_page("docs/how-to/guard-each-kind-of-writer.md")
    with names["app"].app_context():
        names["db"].engine.dispose()
    assert len(entries(engine)) == 7


def test_guard_your_transactions(run_page: RunPage, engine: Engine) -> None:
    """Each way to guard a transaction commits its row, until a newer owner has armed."""
    run_page("docs/how-to/guard-your-transactions.md")
    assert entries(engine) == [
        "from a session",
        "from a connection",
        "from psycopg",
        "from the sink's engine",
        "for both jobs, or for neither",
        "committed by hand",
        "from an async session",
        "from async psycopg",
    ]
