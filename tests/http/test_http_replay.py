"""Repeated requests, on real services before a host's files and before a real PostgreSQL."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sinkfence_postgres import install

CAP = 1000


@dataclass
class Shop:
    """A service that replays, and what its handlers have noted."""

    service: Any
    log: Path
    durable: bool
    """Whether its effects are steps of the ledger."""

    def pay(self, account: int, generation: int = 7, *, key: str = "k", more: str = "", **sent: Any) -> Any:
        path, user = sent.pop("path", f"/accounts/{account}"), sent.pop("user", "ann")
        headers = [("X-User", user), *sent.pop("headers", ())]
        if key:
            headers.append(("Idempotency-Key", key))
        token = f'"account-{account}";g={generation};o="o{generation}"'
        method = sent.pop("method", "POST")
        return self.service.ask(method, path + more, token, headers=headers, body=sent.pop("body", b"1"))

    def runs(self, account: int) -> list[int]:
        """The generations under which the handler ran for this account."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"account-{account} ")]

    def worker(self, account: int) -> int:
        """The process that runs the last of them."""
        return int(
            [line for line in self.log.read_text().splitlines() if f"account-{account} " in line][-1].split()[
                2
            ]
        )

    def until_runs(self, account: int, number: int) -> None:
        while len(self.runs(account)) < number:
            pass

    @contextlib.contextmanager
    def held(self) -> Iterator[Any]:
        """Hold the lock for which handlers stall."""
        with open(f"{self.log}.stall", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


KINDS = [(framework, gate) for gate in ("host", "postgres") for framework in ("starlette", "flask")]


@pytest.fixture(scope="module")
def dsn(postgres_server) -> Iterator[str]:
    database = postgres_server.create_database()
    with psycopg.connect(database, autocommit=True) as db:
        install(db)
        db.execute("create table payment (job text, run int)")
    yield database
    postgres_server.drop_database(database)


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def shop(request, start_service, tmp_path_factory) -> Iterator[Shop]:
    framework, gate = request.param
    folder = tmp_path_factory.mktemp("shop")
    settings = {"log": str(folder / "log"), "folder": str(folder / "gate")}
    if gate == "postgres":
        dsn = request.getfixturevalue("dsn")
        settings["dsn"] = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    service = start_service("replay_service.py", json.dumps(settings), name=framework)
    yield Shop(service, folder / "log", gate == "postgres")
    service.process.kill()
    service.process.wait()


def test_a_repetition_gets_the_first_answer(shop, account):
    """The same request under the same key runs once, and is answered alike, marked as a repetition."""
    first = shop.pay(account)
    assert (first.status, first.fencing) == (200, "accepted")
    again = shop.pay(account, key='"k"')
    assert (again.status, again.fencing, again.body) == (200, "accepted;replayed", first.body)
    assert shop.runs(account) == [7]


def test_what_is_kept_of_an_answer(shop, account):
    """Of the headers those on the list, in their order; of the body every byte. No cookie is handed on."""
    first, again = (shop.pay(account, more="?answer=rich") for _ in range(2))
    kept = ["content-type", "etag", "content-disposition", "location", "retry-after", "content-encoding"]
    assert [(n.lower(), v) for n, v in first.headers.items() if n.lower() in kept] == [
        (n.lower(), v) for n, v in again.headers.items() if n.lower() in kept
    ]
    assert again.headers.get_all("Content-Disposition") == ['attachment; filename="a,b.json"']
    assert len(first.headers.get_all("Set-Cookie")) == 2
    assert "Set-Cookie" not in again.headers
    assert "X-Request-Id" not in again.headers
    assert len(again.headers.get_all("Content-Length")) == 1
    assert again.body == first.body


def test_an_answer_without_a_body_is_repeated_without_one(shop, account):
    """A 204 stays one, without a Content-Length."""
    for word in ("accepted", "accepted;replayed"):
        reply = shop.pay(account, more="?answer=204")
        assert (reply.status, reply.fencing, reply.body) == (204, word, b"")
    assert "Content-Length" not in reply.headers


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"2"},
        {"more": "?x=1"},
        {"method": "PUT"},
        {"path": "/other/{account}"},
        {"headers": [("Content-Type", "text/plain")]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_key_that_was_used_for_another_request(shop, account, other):
    """C87: another body, query, method, path or content type under the same key is 422, and runs nothing."""
    shop.pay(account)
    other = {name: v.format(account=account) if name == "path" else v for name, v in other.items()}
    reply = shop.pay(account, **other)
    assert (reply.status, reply.fencing) == (422, "idempotency-key-reused")
    assert shop.runs(account) == [7]


def test_nobody_gets_another_principal_s_answer(shop, account):
    """C87: the same key of another user, or for another job, is another request."""
    first = shop.pay(account, user="ann")
    other = shop.pay(account, user="bob", more="?x=other")
    assert (other.status, other.fencing) == (200, "accepted")
    assert shop.pay(account, user="ann").body == first.body
    assert len(shop.runs(account)) == 2


def test_who_is_nobody_is_not_served(shop, account):
    """C87: a request whose principal is empty is refused: it must not share answers with others like it."""
    reply = shop.pay(account, user="")
    assert (reply.status, reply.fencing) == (503, "fence-unavailable")
    assert shop.runs(account) == []


def test_without_a_key_nothing_is_kept(shop, account):
    """Requests without a key run each time."""
    assert [shop.pay(account, key="").status for _ in range(2)] == [200, 200]
    assert shop.runs(account) == [7, 7]


def test_a_malformed_key_is_refused(shop, account):
    """A key with a space or a comma, or two keys, is 400, and runs nothing."""
    for headers in (
        [("Idempotency-Key", "a b")],
        [("Idempotency-Key", "a,b")],
        [("Idempotency-Key", "k")] * 2,
    ):
        reply = shop.pay(account, key="", headers=headers)
        assert (reply.status, reply.fencing) == (400, "idempotency-key-required")
    assert shop.runs(account) == []


def test_a_stale_owner_reads_no_answer(shop, account):
    """The fence comes first: once 8 was seen, 7 is told that it is stale; 8 gets what 7 was answered."""
    first = shop.pay(account, 7)
    taken = shop.pay(account, 8)
    assert (taken.fencing, taken.body) == ("accepted;replayed", first.body)
    assert shop.pay(account, 7).fencing == "stale-token;current=8"
    assert shop.runs(account) == [7]


def test_answers_that_ask_for_a_repetition_are_not_kept(shop, account):
    """A 429 is asked for again and runs again, under the same key."""
    assert [until_served(shop, account, more="?answer=429").status for _ in range(2)] == [429, 429]
    assert shop.runs(account) == [7, 7]


def test_what_was_answered_before_the_handler_admitted_is_not_kept(shop, account):
    """A 401 of a login that stands before the handler is not what the request was answered."""
    assert [until_served(shop, account, more="?answer=early").fencing for _ in range(2)] == ["accepted"] * 2


def test_an_answer_of_the_handler_is_kept_whatever_it_says(shop, account):
    """A 404 by a handler that has admitted is repeated."""
    for word in ("accepted", "accepted;replayed"):
        reply = shop.pay(account, more="?answer=404")
        assert (reply.status, reply.fencing) == (404, word)


@pytest.mark.parametrize("answer", ["503", "raises"])
def test_a_handler_that_failed(shop, account, answer):
    """C85: a 5xx isn't kept. Steps of the ledger are run again, and done once; else the outcome is unknown
    until a newer owner runs it again."""
    assert shop.pay(account, more=f"?answer={answer}").status >= 500
    again = until_served(shop, account, more=f"?answer={answer}")
    newer = shop.pay(account, 8, more=f"?answer={answer}")
    assert newer.status >= 500
    if shop.durable:
        assert again.status >= 500
        assert shop.runs(account) == [7, 7, 8]
    else:
        assert (again.status, again.fencing) == (409, "outcome-unknown")
        assert "Retry-After" not in again.headers
        assert shop.runs(account) == [7, 8]


@pytest.mark.parametrize("answer", ["503", "429", "raises", "breaks", "late"])
def test_what_was_committed_without_a_step_is_not_done_again(shop, account, answer, request):
    """C85: where no answer is left of it, its outcome is unknown until a newer owner runs it again."""
    if not shop.durable:
        pytest.skip("a HostGate doesn't see what was committed")
    more = f"?answer={answer}&stepless=1"
    for generation in (7, 8):
        try:
            assert shop.pay(account, generation, more=more).status in (429, 500, 503)
        except http.client.HTTPException:
            assert answer == "breaks"
        again = until_served(shop, account, generation, more=more)
        assert (again.status, again.fencing) == (409, "outcome-unknown")
        assert "Retry-After" not in again.headers
        other = shop.pay(account, generation, more=more, body=b"2")
        assert (other.status, other.fencing) == (422, "idempotency-key-reused")
    assert shop.runs(account) == [7, 8]
    assert len(paid(request, account)) == 2


def until_served(shop, account, generation=7, *, more) -> Any:
    """Ask until the attempt before has left: it may do so only after its answer was sent."""
    while (again := shop.pay(account, generation, more=more)).fencing == "request-in-progress":
        pass
    return again


def test_where_nothing_was_committed_the_handler_runs_again(shop, account, request):
    """A handler that failed before its transaction."""
    if not shop.durable:
        pytest.skip("a HostGate doesn't see what was committed")
    for _ in range(2):
        assert until_served(shop, account, more="?answer=fails&stepless=1").status == 500
    assert (shop.runs(account), paid(request, account)) == ([7, 7], [])


def test_an_answer_that_is_too_long_to_keep(shop, account):
    """It goes out once; its repetition is told so, and not run."""
    assert len(shop.pay(account, more="?answer=big").body) == CAP + 1
    again = shop.pay(account, more="?answer=big")
    assert (again.status, again.fencing) == (409, "answer-not-kept")
    assert shop.runs(account) == [7]


def test_a_body_that_is_too_long_to_compare(shop, account):
    """Above the cap a Content-Digest stands for the body: without one 413, with another one 422."""
    body = b"y" * (CAP + 1)
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    declared = [("Content-Digest", f"sha-256=:{digest}:")]
    assert shop.pay(account, body=body).fencing == "content-digest-required"
    assert shop.pay(account, body=iter([body])).fencing == "content-digest-required"
    assert shop.runs(account) == []
    first = shop.pay(account, body=body, headers=declared)
    assert first.json["size"] == CAP + 1
    again = shop.pay(account, body=iter([body[:300], body[300:]]), headers=declared)
    assert (again.fencing, again.body) == ("accepted;replayed", first.body)
    other = [("Content-Digest", f"sha-256=:{base64.b64encode(bytes(32)).decode()}:")]
    assert shop.pay(account, body=body, headers=other).status == 422
    assert shop.runs(account) == [7]


def test_a_long_body_in_chunks_reaches_the_handler_whole(shop, account):
    """What was read to be compared, and the rest of it, come to the handler as one."""
    body = bytes(range(256)) * 400
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    reply = shop.pay(account, body=iter([body]), headers=[("Content-Digest", f"sha-256=:{digest}:")])
    assert reply.json["size"] == len(body)


def test_chunks_and_whole_bodies_are_the_same_request(shop, account):
    """How a body was framed makes no other request of it."""
    first = shop.pay(account, body=b"abc")
    again = shop.pay(account, body=iter([b"a", b"bc"]))
    assert (again.fencing, again.body) == ("accepted;replayed", first.body)
    assert first.json["size"] == 3


def test_a_streamed_answer_is_kept_whole(shop, account):
    """An event stream that ends is repeated as one body."""
    first, again = (shop.pay(account, more="?answer=stream") for _ in range(2))
    assert (again.fencing, again.body) == ("accepted;replayed", first.body)
    assert first.body.count(b"data:") == 3
    assert again.headers["Content-Type"].startswith("text/event-stream")


def test_an_answer_that_broke_off_is_not_given_again_as_a_whole_one(shop, account, request):
    """A handler declares one byte more than it sends: nobody has had its answer. Steps of the ledger are run
    again, and done once; else the outcome is unknown until a newer owner runs it again."""

    def short(generation: int) -> str:
        try:
            return shop.pay(account, generation, more="?answer=short").fencing
        except http.client.IncompleteRead:
            return "broke off"

    assert short(7) == "broke off"
    while (again := short(7)) == "request-in-progress":  # it is told once the handler has left
        pass
    if shop.durable:
        assert (again, shop.runs(account)) == ("broke off", [7, 7])
        assert len(paid(request, account)) == 1
    else:
        assert (again, shop.runs(account)) == ("outcome-unknown", [7])
        assert (short(8), shop.runs(account)) == ("broke off", [7, 8])


def test_a_client_that_vanishes_in_the_middle_of_its_body_runs_nothing(shop, account):
    """Half a body, then the end of the connection: no handler sees it, and the key stays free."""
    head = (
        f"POST /accounts/{account} HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nIdempotency-Key: k\r\n"
        f'Fencing-Token: "account-{account}";g=7;o="o7"\r\nContent-Length: 10\r\n\r\n12345'
    )
    with socket.create_connection(("127.0.0.1", shop.service.port)) as connection:
        connection.sendall(head.encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert shop.runs(account) == []
    assert shop.pay(account).fencing == "accepted"


def test_a_request_that_is_being_served(shop, account):
    """Its repetition in the same generation is told to come back."""
    with shop.held() as lock, ThreadPoolExecutor() as pool:
        first = pool.submit(shop.pay, account, more="?stall=before")
        shop.until_runs(account, 1)
        again = shop.pay(account, more="?stall=before")
        assert (again.status, again.fencing) == (409, "request-in-progress")
        assert int(again.headers["Retry-After"]) > 0
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert first.result().status == 200
    assert shop.pay(account, more="?stall=before").body == first.result().body
    assert shop.runs(account) == [7]


def test_fifty_at_once(shop, account):
    """C89: one runs; the others get its answer, or are told that it is being served."""
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: shop.pay(account), range(50)))
    assert {reply.status for reply in replies} <= {200, 409}
    assert len({reply.body for reply in replies if reply.status == 200}) == 1
    assert shop.runs(account) == [7]


def test_more_requests_at_once_than_the_pool_has_connections(shop, account):
    """A handler is never kept from its connection by those that hold the keys: each gets through."""
    with shop.held() as lock, ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(shop.pay, account, key=f"k{n}", more="?stall=before") for n in range(8)]
        shop.until_runs(account, 8)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert [reply.result().status for reply in replies] == [200] * 8


def test_a_newer_owner_takes_an_unfinished_request_over(shop, account):
    """C85: in a database at once, 8 runs it while 7 is still inside; what 7 answers late is kept nowhere."""
    if not shop.durable:
        pytest.skip("on a host the newer owner waits at the gate")
    with shop.held() as lock, ThreadPoolExecutor() as pool:
        late = pool.submit(shop.pay, account, 7, more="?stall=before")
        shop.until_runs(account, 1)
        newer = pool.submit(shop.pay, account, 8, more="?stall=before")
        shop.until_runs(account, 2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert late.result().fencing == "stale-token;current=8"
        assert newer.result().fencing == "accepted"
    again = shop.pay(account, 8, more="?stall=before")
    assert (again.fencing, again.body) == ("accepted;replayed", newer.result().body)
    assert shop.runs(account) == [7, 8]


@pytest.mark.parametrize("stall", ["before", "after"])
def test_a_worker_that_is_killed_inside_the_handler(shop, account, stall, request):
    """C85: steps of the ledger are run again and done once. On a host the outcome is unknown to the owner; a
    newer one runs it again at once, and with no other body."""
    with shop.held() as lock, ThreadPoolExecutor() as pool:
        lost = pool.submit(shop.pay, account, 7, more=f"?stall={stall}")
        shop.until_runs(account, 1)
        if stall == "after" and shop.durable:
            while not paid(request, account):
                pass
        os.kill(shop.worker(account), signal.SIGKILL)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            lost.result()
        fcntl.flock(lock, fcntl.LOCK_UN)
        if stall == "after" and shop.durable:
            other = shop.pay(account, 7, more=f"?stall={stall}", body=b"2")
            assert (other.status, other.fencing) == (422, "idempotency-key-reused")
        again = shop.pay(account, 7, more=f"?stall={stall}")
        if not shop.durable:
            other = shop.pay(account, 8, more=f"?stall={stall}", body=b"2")
            assert (other.status, other.fencing) == (422, "idempotency-key-reused")
        newer = shop.pay(account, 8, more=f"?stall={stall}")
    assert newer.status == 200
    if shop.durable:
        assert (again.status, again.fencing) == (200, "accepted")
        assert (newer.fencing, newer.body) == ("accepted;replayed", again.body)
        assert paid(request, account) == [again.json["run"]]
    else:
        assert (again.status, again.fencing) == (409, "outcome-unknown")
        assert "Retry-After" not in again.headers
        assert shop.runs(account) == [7, 8]


def paid(request, account: int) -> list[int]:
    with psycopg.connect(request.getfixturevalue("dsn")) as db:
        rows = db.execute("select run from payment where job = %s", [f"account-{account}"])
        return [run for (run,) in rows]


def test_a_caller_that_leaves_while_it_is_served(shop, account):
    """C85: the handler ends as its server has it; the key is never in progress for ever."""
    head = (
        f"POST /accounts/{account}?stall=before HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nIdempotency-Key: k\r\n"
        f'Fencing-Token: "account-{account}";g=7;o="o7"\r\nContent-Length: 1\r\n\r\n1'
    )
    with shop.held() as lock:
        with socket.create_connection(("127.0.0.1", shop.service.port)) as connection:
            connection.sendall(head.encode())
            shop.until_runs(account, 1)
        fcntl.flock(lock, fcntl.LOCK_UN)
    while (again := shop.pay(account, more="?stall=before")).fencing == "request-in-progress":
        pass
    assert again.fencing in ("accepted;replayed", "accepted", "outcome-unknown")


def test_a_stream_that_ended_because_its_caller_left_is_not_given_again_as_a_whole_one(
    start_service, tmp_path, account
):
    """Starlette's BaseHTTPMiddleware, behind the door, puts a regular end to a stream that was cut off."""
    settings = {"log": str(tmp_path / "log"), "folder": str(tmp_path / "gate"), "middleware": True}
    service = start_service("replay_service.py", json.dumps(settings), name="starlette")
    shop, more = Shop(service, tmp_path / "log", durable=False), "?answer=stream&stall=within"
    head = (
        f"POST /accounts/{account}{more} HTTP/1.1\r\nHost: x\r\nX-User: ann\r\nIdempotency-Key: k\r\n"
        f'Fencing-Token: "account-{account}";g=7;o="o7"\r\nContent-Length: 1\r\n\r\n1'
    )
    with shop.held():
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(head.encode())
            received = b""
            while b"data:" not in received:
                received += connection.recv(4096)
        again = until_served(shop, account, more=more)
    assert (again.status, again.fencing) == (409, "outcome-unknown")
