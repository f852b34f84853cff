"""The examples, one per framework: real services before a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from sinkfence import GenerationConflict, StaleToken, Token
from sinkfence_http import TokenSigner
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import install

PRIVATE = ed25519.Ed25519PrivateKey.generate()
SIGN = TokenSigner(PRIVATE, kid="2026-05", alg="EdDSA", issuer="workers", audience="accounts")
LIBPQ = ("django", "async-django")


@dataclass
class Accounts:
    """A service, and its database to look into."""

    name: str
    service: object
    db: psycopg.Connection

    def pay(self, token: Token, account: str | int, amount: int, prefix: str = "") -> requests.Response:
        with requests.Session() as session:
            session.mount(self.service.url + "/", FencedAdapter(token, sign=SIGN))
            url = f"{self.service.url}{prefix}/accounts/{account}"
            return session.post(url, params={"amount": amount}, timeout=30)

    def arm(self, token: Token) -> None:
        with requests.Session() as session:
            HttpSink(session, self.service.url, sign=SIGN).arm(token)

    def amounts(self, account: int) -> list[int]:
        found = self.db.execute("select amount from payment where account = %s order by id", [account])
        return [amount for (amount,) in found.fetchall()]


@pytest.fixture(scope="module", params=["fastapi", "starlette", "flask", "django", "async-django"], ids=str)
def accounts(request, postgres_server, start_service, tmp_path_factory) -> Iterator[Accounts]:
    name = request.param
    dsn = postgres_server.create_database()
    folder = tmp_path_factory.mktemp(name)
    (folder / "public.pem").write_bytes(
        PRIVATE.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
        db.execute("create table payment (id serial primary key, account int, amount int)")
        url = dsn if name in LIBPQ else dsn.replace("postgresql://", "postgresql+psycopg://", 1)
        service = start_service(
            "example_service.py", json.dumps({"dsn": url, "folder": str(folder)}), name=name
        )
        yield Accounts(name, service, db)
        service.process.kill()
        service.process.wait()
    postgres_server.drop_database(dsn)


def token_of(account: int, generation: int, owner: str = "worker") -> Token:
    return Token(f"account-{account}", generation, f"{owner}:{generation}")


def test_an_owner_pays_and_its_predecessor_does_not(accounts, account):
    """Armed and paid by 8; 7 is refused at the door, another owner of 8 as well, and 9 is let in."""
    accounts.arm(token_of(account, 8))
    assert accounts.pay(token_of(account, 8), account, 1).json() == {"paid": 1}
    with pytest.raises(StaleToken) as refused:
        accounts.pay(token_of(account, 7), account, 2)
    assert refused.value.mark == 8
    with pytest.raises(GenerationConflict):
        accounts.pay(token_of(account, 8, "other"), account, 3)
    assert accounts.pay(token_of(account, 9), account, 4).json() == {"paid": 4}
    assert accounts.amounts(account) == [1, 4]


def test_overtaken_in_its_handler(accounts, account):
    """7 waits for the table in its handler; 8 arms; 7's COMMIT is refused, and its caller reads a 412."""
    overtaken(accounts, account)


@pytest.mark.parametrize("accounts", ["async-django"], indirect=True)
def test_overtaken_in_a_sync_view_by_asgi(accounts, account):
    """The same in a thread, which Django runs the view in."""
    overtaken(accounts, account, "/sync")


def overtaken(accounts, account, prefix=""):
    dsn, password = accounts.db.info.dsn, accounts.db.info.password
    with ThreadPoolExecutor() as pool, psycopg.connect(dsn, password=password) as blocker:
        blocker.execute("lock table payment in access exclusive mode")
        late = pool.submit(accounts.pay, token_of(account, 7), account, 1, prefix)
        waiting = (
            "select count(*) from pg_locks, pg_sleep(0.01)"
            " where relation = 'payment'::regclass and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
        while accounts.db.execute(waiting).fetchone() == (0,):
            pass
        accounts.arm(token_of(account, 8))
        blocker.rollback()
        with pytest.raises(StaleToken) as refused:
            late.result(60)
    assert (refused.value.mark, refused.value.earlier_attempt_unknown) == (8, False)
    assert accounts.amounts(account) == []


def test_which_job_a_request_is_for(accounts, account):
    """The handler's own number counts: /accounts/007 is account 7, and another account's token a 403."""
    assert accounts.pay(token_of(account, 7), f"00{account}", 1).json() == {"paid": 1}
    refused = accounts.pay(token_of(account + 1000, 7), account, 2)
    assert (refused.status_code, refused.headers["Fencing-Status"]) == (403, "job-mismatch")
    assert accounts.amounts(account) == [1]


def test_what_needs_no_token(accounts, account):
    """An exempt route is served without one; any other write is a 428."""
    assert accounts.service.ask("POST", "/webhooks/ping").body.strip(b'"') == b"pong"
    refused = accounts.service.ask("POST", f"/accounts/{account}?amount=1")
    assert (refused.status, refused.fencing) == (428, "token-required")
    assert accounts.amounts(account) == []
