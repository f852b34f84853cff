"""The race behind the door: which gate is a fence under which real server, and which one isn't."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from racing import Place

import sinkfence_postgres.aio
from sinkfence import Token
from sinkfence_http import TrustedNetwork, aio, asgi
from sinkfence_http.wire import format_token

ARM = ".well-known/fencing-arm"


@pytest.fixture
def place(race_database, account) -> Place:
    return Place(race_database, account)


def pay(service: Any, gate: str, account: int, generation: int, query: str = "") -> Any:
    return service.ask("POST", f"/{gate}/{account}{query}", shown(account, generation))


def arm(service: Any, gate: str, account: int, generation: int) -> Any:
    return service.ask("POST", f"/{gate}/{ARM}", shown(account, generation))


def shown(account: int, generation: int) -> str:
    return format_token(Token(f"account-{account}", generation, f"worker:{generation}"))


SERVERS = ["uvicorn", "uvicorn-2", "gunicorn", "hypercorn"]


@pytest.mark.parametrize("server", [*SERVERS, "nginx"])
@pytest.mark.parametrize("gate", ["postgres", "host", "impatient", "door", "tasks"])
def test_7_is_admitted_and_stalls_8_writes_7_wakes(start_race, place, server, gate):
    """A PostgresSink refuses 7, a HostGate keeps 8 waiting for it: DoorOnly and tasks let 7 write after 8.

    The last two are what a fence must not be, and have to fail here as long as the docs say that they do.
    """
    service = start_race(server)
    with place.stalling() as release, ThreadPoolExecutor() as pool:
        late = pool.submit(pay, service, gate, place.account, 7, "?stall")
        session, _ = place.stalled(None if gate == "tasks" else late)
        new = pool.submit(pay, service, gate, place.account, 8)
        if gate == "host":  # until 8 has raised the mark; it waits then for 7 to leave
            while arm(service, gate, place.account, 7).status != 412:
                pass
            assert place.rows() == []
        elif gate == "impatient":
            assert new.result(60).fencing == "previous-owner-in-flight"
            assert new.result().headers["Retry-After"] == "1"
            assert arm(service, gate, place.account, 7).fencing == "stale-token;current=8"
        else:
            assert new.result(60).fencing == "accepted"
            while place.rows() == []:  # a task writes when its request has been answered
                pass
            assert place.rows() == [8]
        release()
        answers = [late.result(60).fencing, new.result(60).fencing]
        place.session_has_ended(session)
    if gate == "impatient":
        answers[1] = pay(service, gate, place.account, 8).fencing
    assert (answers, place.rows()) == {
        "postgres": (["stale-token;current=8", "accepted"], [8]),
        "host": (["accepted", "accepted"], [7, 8]),
        "impatient": (["accepted", "accepted"], [7, 8]),
        "door": (["accepted", "accepted"], [8, 7]),
        "tasks": (["accepted", "accepted"], [8, 7]),
    }[gate]


@pytest.mark.parametrize("server", ["uvicorn-2", "gunicorn"])
@pytest.mark.parametrize(("gate", "rows"), [("postgres", [8]), ("host", [8, 7])])
def test_a_worker_is_killed_inside_its_handler(start_race, place, server, gate, rows):
    """kill -9 keeps nobody out. A guarded transaction dies with it; a bare statement under way doesn't.

    That is what a HostGate can't know of: the second row has to fail as long as the docs say that it does.
    """
    service = start_race(server)
    with place.stalling() as release, ThreadPoolExecutor() as pool:
        late = pool.submit(pay, service, gate, place.account, 7, "?stall")
        session, worker = place.stalled(late)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            late.result(60)
        assert pay(service, gate, place.account, 8).fencing == "accepted"
        release()
        place.session_has_ended(session)
    assert place.rows() == rows


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("gate", ["postgres", "host"])
def test_the_database_ends_a_session_inside_a_handler(start_race, place, server, gate):
    """It is the server's own 500, nothing of it was applied, and the next owner isn't kept waiting."""
    service = start_race(server)
    with place.stalling(), ThreadPoolExecutor() as pool:
        late = pool.submit(pay, service, gate, place.account, 7, "?stall")
        place.db.execute("select pg_terminate_backend(%s)", [place.stalled(late)[0]])
        assert (late.result(60).status, late.result().fencing) == (500, None)
        assert pay(service, gate, place.account, 8).fencing == "accepted"
    assert pay(service, gate, place.account, 7).fencing == "stale-token;current=8"
    assert place.rows() == [8]


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn"])
def test_the_database_ends_each_session_of_the_door(start_race, place, server):
    """Whether the mark was raised isn't known: 503 with Retry-After, nothing runs, and it can be repeated."""
    service = start_race(server)
    waiting = (
        "select pid from pg_locks, pg_sleep(0.005)"
        " where relation = 'sinkfence.mark'::regclass and not granted"
    )
    with psycopg.connect(place.dsn) as blocker, ThreadPoolExecutor() as pool:
        blocker.execute("lock table sinkfence.mark")
        reply = pool.submit(pay, service, "postgres", place.account, 7)
        while not reply.done():  # the first, and the new one by which the door repeats what is harmless
            for found in place.db.execute(waiting).fetchall():
                place.db.execute("select pg_terminate_backend(%s)", found)
        assert (reply.result(60).status, reply.result().fencing) == (503, "fence-unavailable")
        assert reply.result().headers["Retry-After"] == "1"
        blocker.rollback()
    assert place.rows() == []
    assert pay(service, "postgres", place.account, 7).fencing == "accepted"


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn", "hypercorn"])
@pytest.mark.parametrize("gate", ["postgres", "host"])
def test_a_caller_leaves_while_its_request_is_in_the_handler(start_race, place, server, gate):
    """Whether its server ends the handler or not, nothing of 7 comes after 8."""
    service = start_race(server)
    with place.stalling() as release, ThreadPoolExecutor() as pool:
        with socket.create_connection(("127.0.0.1", service.port)) as caller:
            head = f"POST /{gate}/{place.account}?stall HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"
            caller.sendall(f"{head}Fencing-Token: {shown(place.account, 7)}\r\n\r\n".encode())
            session, _ = place.stalled()
        new = pool.submit(pay, service, gate, place.account, 8)
        if gate == "postgres":
            assert new.result(60).fencing == "accepted"
        release()
        place.session_has_ended(session)
        assert new.result(60).fencing == "accepted"
    assert place.rows() in ([8], [7, 8])
    assert gate == "host" or place.rows() == [8]


@pytest.mark.parametrize("server", ["uvicorn", "gunicorn", "hypercorn"])
@pytest.mark.parametrize("gate", ["postgres", "impatient"])
def test_a_caller_stops_in_the_middle_of_its_body(start_race, place, server, gate):
    """A PostgresSink lets 8 go on. At a HostGate it waits until 7's connection ends: its handler is inside.

    A proxy that sends whole requests on, or replay under an Idempotency-Key, reads the body before.
    """
    service = start_race(server)
    reading = "select 1 from pg_locks, pg_sleep(0.005) where classid = 2 and objid = %s and granted"
    with socket.create_connection(("127.0.0.1", service.port)) as caller:
        head = f"POST /{gate}/{place.account}?body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"
        caller.sendall(f"{head}Fencing-Token: {shown(place.account, 7)}\r\n\r\nhalf".encode())
        while not place.db.execute(reading, [place.account]).fetchone():
            pass
        answered = pay(service, gate, place.account, 8).fencing
        assert answered == ("accepted" if gate == "postgres" else "previous-owner-in-flight")
    while pay(service, gate, place.account, 8).fencing == "previous-owner-in-flight":
        pass
    assert set(place.rows()) == {8}


def test_a_cancelled_request_keeps_nobody_out(place):
    """Its transaction is rolled back, and its session given up: what 7 would have written is never there."""
    dsn = place.dsn
    fence = aio.Fence(sinkfence_postgres.aio.PostgresSink(dsn), TrustedNetwork())

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        token = await fence.admit(scope, f"account-{place.account}")
        async with (
            await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, application_name="worker 0"
            ) as session,
            sinkfence_postgres.aio.transaction(session, token),
        ):
            await session.execute(
                "insert into payment (account, generation) values (%s, %s)", [place.account, token.generation]
            )
            if token.generation == 7:
                await session.execute("select pg_advisory_xact_lock_shared(1, %s)", [place.account])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    door = asgi.FencingMiddleware(handle, fence)

    async def ask(generation: int) -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"fencing-token", shown(place.account, generation).encode())]
        await door({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
        return sent[0]["status"]

    async def race() -> None:
        late = asyncio.create_task(ask(7))
        await asyncio.to_thread(place.stalled)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert await ask(8) == 200

    with place.stalling():
        asyncio.run(race())
    assert place.rows() == [8]


@pytest.mark.parametrize("server", ["uvicorn-2", "gunicorn"])
@pytest.mark.parametrize("gate", ["postgres", "host"])
def test_three_owners_at_once(start_race, place, server, gate):
    """Requests of three generations in any order, over two processes: what is written never goes back."""
    service = start_race(server)
    generations = [7, 8, 9] * 8
    random.Random(place.account).shuffle(generations)
    with ThreadPoolExecutor(8) as pool:
        replies = pool.map(lambda number: pay(service, gate, place.account, number), generations)
        accepted = sorted(
            number for number, reply in zip(generations, replies, strict=True) if reply.fencing == "accepted"
        )
    assert place.rows() == accepted
    assert accepted.count(9) == 8
