"""The worked example, and the race behind the door, on a real service before a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from sinkfence import OutcomeUnknown, StaleToken, Token
from sinkfence_http import TokenSigner
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import install

ROOT = Path(__file__).parents[2]
PRIVATE = ed25519.Ed25519PrivateKey.generate()
SIGN = TokenSigner(PRIVATE, kid="k1", alg="EdDSA", issuer="workers", audience="ledger")


@dataclass
class Ledger:
    """A service, and its database to look into."""

    service: object
    db: psycopg.Connection

    @property
    def url(self) -> str:
        return self.service.url

    def rows(self, account: int) -> list[tuple[int, str]]:
        found = self.db.execute(
            "select generation, note from payment where account = %s order by id", [account]
        )
        return found.fetchall()

    def wait_for_a_stall(self) -> None:
        """Return once somebody waits for the lock that the test holds."""
        waiting = (
            "select count(*) from pg_locks, pg_sleep(0.01)"
            " where locktype = 'advisory' and classid = 0 and objid = 1 and not granted"
        )
        while self.db.execute(waiting).fetchone() == (0,):
            pass


@pytest.fixture(scope="module", params=["fastapi", "flask"])
def ledger(request, postgres_server, start_service) -> Iterator[Ledger]:
    dsn = postgres_server.create_database()
    public = PRIVATE.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
        db.execute("create table payment (id serial, account int, generation bigint, note text)")
        settings = json.dumps({"dsn": dsn, "key": public.decode()})
        service = start_service("ledger_service.py", settings, name=request.param)
        yield Ledger(service, db)
        service.process.kill()
        service.process.wait()
    postgres_server.drop_database(dsn)


def owner(ledger: Ledger, account: int, generation: int) -> tuple[requests.Session, Token]:
    """A worker's session, the way a user sets it up."""
    token = Token(f"account-{account}", generation, f"worker:{generation}")
    session = requests.Session()
    session.mount(ledger.url + "/", FencedAdapter(token, sign=SIGN))
    return session, token


def test_the_worked_example(ledger, account, hold_wire):
    """A is stopped with its request of 7 held on the wire; B arms 8 and writes; A's is refused 412."""
    wire = hold_wire(ledger.service)
    pem = PRIVATE.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    command = [sys.executable, str(Path(__file__).parent / "services" / "worker.py")]
    worker = subprocess.Popen(
        [*command, wire.url, f"/accounts/{account}?note=A", f"account-{account}", "7", pem.decode()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'adapters'}"},
    )
    try:
        assert wire.arrived.wait(60)
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)

        session, token = owner(ledger, account, 8)
        HttpSink(session, ledger.url, sign=SIGN).arm(token)
        assert session.post(f"{ledger.url}/accounts/{account}?note=B").json() == {"paid": account}

        wire.release.set()
        assert wire.answered.wait(60)
        assert wire.answers[0].split(b" ")[1] == b"412"
        assert b"fencing-status: stale-token;current=8" in wire.answers[0].lower()
    finally:
        worker.send_signal(signal.SIGCONT)
    output, _ = worker.communicate(timeout=60)
    assert json.loads(output) == {"stale": 7, "mark": 8}
    assert len(wire.requests) == 1  # a 412 is never repeated
    assert ledger.rows(account) == [(8, "B")]


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("", "stall=before"),
        ("", "stall=inside"),
        ("/part", "stall=before"),
        ("", "stall=before&kept=listed"),
        ("", "stall=before&kept=grouped"),
        ("/part", "stall=inside&kept=grouped"),
    ],
)
def test_admitted_at_the_door_and_overtaken_behind_it(ledger, account, path, how):
    """7 is admitted and stalls in its handler; 8 writes; 7 wakes, is refused, and its owner hears it.

    Whatever becomes of the refusal on its way: a framework's 500, a group of errors, a list in a success.
    """
    refused = overtaken(ledger, account, f"{path}/accounts/{account}?note=A&{how}")
    assert (refused.mark, refused.earlier_attempt_unknown) == (8, False)
    assert ledger.rows(account) == [(8, "B")]


@pytest.mark.parametrize("kept", ["", "listed"])
def test_overtaken_between_two_transactions_of_one_handler(ledger, account, kept):
    """What the first has committed stands, so the refusal of the second doesn't say that nothing changed."""
    refused = overtaken(ledger, account, f"/accounts/{account}?note=A&stall=between&kept={kept}")
    assert (refused.mark, refused.earlier_attempt_unknown) == (8, True)
    assert ledger.rows(account) == [(7, "A"), (8, "B")]


def overtaken(ledger, account, path) -> StaleToken:
    """Post as 7, which stalls in its handler; post as 8; return how 7 is refused."""
    with (
        ThreadPoolExecutor() as pool,
        psycopg.connect(ledger.db.info.dsn, password=ledger.db.info.password) as blocker,
    ):
        blocker.execute("select pg_advisory_xact_lock(1)")
        old, _ = owner(ledger, account, 7)
        late = pool.submit(old.post, ledger.url + path)
        ledger.wait_for_a_stall()
        new, _ = owner(ledger, account, 8)
        assert new.post(f"{ledger.url}/accounts/{account}?note=B").status_code == 200
        blocker.rollback()
        with pytest.raises(StaleToken) as refused:
            late.result(60)
    return refused.value


def test_the_fence_does_not_stand_in_the_way_of_an_owner(ledger, account):
    """One owner writes often and at once, a newer one takes over, and the rows are in their order."""
    with ThreadPoolExecutor(8) as pool:
        for generation in (7, 8):
            session, _ = owner(ledger, account, generation)
            replies = pool.map(lambda _, s=session: s.post(f"{ledger.url}/accounts/{account}"), range(16))
            assert {reply.status_code for reply in replies} == {200}
    assert [generation for generation, _ in ledger.rows(account)] == [7] * 16 + [8] * 16


def test_an_effect_that_nobody_checked_is_not_called_a_success(ledger, account):
    """A handler that writes without the guard is a 500 not-guarded: its effect may stand."""
    session, _ = owner(ledger, account, 7)
    with pytest.raises(OutcomeUnknown):
        session.post(f"{ledger.url}/forgets/{account}")


def test_a_dependency_that_commits_too_late_is_not_called_a_success(ledger, account):
    """FastAPI commits a `yield` dependency's session after the answer: 500 not-guarded, never 200."""
    if "fastapi" not in ledger.service.log.name:
        pytest.skip("FastAPI's own")
    session, _ = owner(ledger, account, 7)
    with pytest.raises(OutcomeUnknown):
        session.post(f"{ledger.url}/late/{account}")


def test_an_unknown_sender_neither_raises_a_mark_nor_learns_one(ledger, account):
    """A huge number without a trusted signature is a 403 that discloses nothing, and locks nobody out."""
    session, _ = owner(ledger, account, 7)
    session.post(f"{ledger.url}/accounts/{account}")
    stranger = TokenSigner(
        ed25519.Ed25519PrivateKey.generate(), kid="k1", alg="EdDSA", issuer="workers", audience="ledger"
    )
    for generation in (10**15 - 1, 1):
        forged = stranger(Token(f"account-{account}", generation, "x"))
        for path in (f"/accounts/{account}", "/.well-known/fencing-arm"):
            reply = ledger.service.ask("POST", path, forged)
            assert (reply.status, reply.fencing) == (403, "unauthentic-token")
            assert "current" not in reply.json
    assert ledger.service.ask("POST", f"/accounts/{account}", f'"account-{account}";g=9;o="x"').status == 400
    assert session.post(f"{ledger.url}/accounts/{account}").status_code == 200


def test_a_token_is_good_at_its_own_service_only(ledger, account):
    """A token signed for another audience is unauthentic here."""
    elsewhere = TokenSigner(PRIVATE, kid="k1", alg="EdDSA", issuer="workers", audience="mail")
    value = elsewhere(Token(f"account-{account}", 9, "x"))
    assert ledger.service.ask("POST", f"/accounts/{account}", value).fencing == "unauthentic-token"


def test_without_the_schema_the_door_stays_shut(postgres_server, start_service, account):
    """A database that nobody installed the fence in: 503, and nothing of the reason leaves the log."""
    dsn = postgres_server.create_database()
    public = PRIVATE.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    settings = json.dumps({"dsn": dsn, "key": public.decode()})
    service = start_service("ledger_service.py", settings, name="flask")
    reply = service.ask("POST", f"/accounts/{account}", SIGN(Token(f"account-{account}", 7, "a")))
    assert (reply.status, reply.fencing) == (503, "fence-unavailable")
    assert b"schema" not in reply.body
    assert "SchemaMismatch" in service.log.read_text()
    service.process.kill()
    service.process.wait()
    postgres_server.drop_database(dsn)
