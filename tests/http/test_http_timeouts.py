"""A time limit outside of the door: what its request has committed is not taken for undone."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import anyio
import httpx
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import sinkfence_postgres
from sinkfence_http import TrustedNetwork, aio
from sinkfence_http.frameworks import install
from sinkfence_postgres.aio import PostgresSink, transaction

HEADERS = {"Fencing-Token": '"invoice-42";g=7;o="a"', "Idempotency-Key": "k"}


async def ended_at(moment: asyncio.Event, limit: str, app, *request) -> None:
    """Have an application serve a request, and end that at a moment, by a limit of either library."""
    if limit == "asyncio":
        task = asyncio.ensure_future(app(*request))
        await moment.wait()
        task.cancel()
        await asyncio.wait([task])
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(app, *request)
            await moment.wait()
            group.cancel_scope.cancel()


@pytest.mark.parametrize("limit", ["anyio", "asyncio"])
def test_a_limit_after_a_commit_leaves_the_outcome_unknown(dsn, limit):
    """anyio cancels at every await, also where the door notes how the attempt has ended."""
    runs = []

    async def run() -> httpx.Response:
        sink = PostgresSink(dsn)
        fence = aio.Fence(sink, TrustedNetwork(), replay=sink.replay(), principal=lambda scope: "ann")
        committed = asyncio.Event()

        async def pay(request):
            token = await fence.admit(request.scope, "invoice-42")
            async with await psycopg.AsyncConnection.connect(dsn) as conn, transaction(conn, token):
                runs.append(token.generation)
            if not committed.is_set():
                committed.set()
                await asyncio.Event().wait()
            return PlainTextResponse("paid")

        app = install(Starlette(routes=[Route("/pay", pay, methods=["POST"])]), fence)

        async def limited(scope, receive, send):
            if committed.is_set():
                await app(scope, receive, send)
                return
            await ended_at(committed, limit, app, scope, receive, send)
            await PlainTextResponse("too late", 504)(scope, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://a") as client:
            assert (await client.post("/pay", headers=HEADERS)).status_code == 504
            return await client.post("/pay", headers=HEADERS)

    with psycopg.connect(dsn, autocommit=True) as db:
        sinkfence_postgres.install(db)
    answer = asyncio.run(run())
    assert (answer.status_code, answer.headers["Fencing-Status"]) == (409, "outcome-unknown")
    assert runs == [7]


class HeldCommits:
    """A wire to the server that keeps the answer to a COMMIT until somebody else connects."""

    def __init__(self, dsn: str) -> None:
        self.target = urlsplit(dsn)
        self.applied = asyncio.Event()
        self.release = asyncio.Event()
        self.serving: list[asyncio.Task] = []

    @contextlib.asynccontextmanager
    async def listening(self):
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            user = self.target.netloc.rpartition("@")[0]
            port = server.sockets[0].getsockname()[1]
            yield self.target._replace(netloc=f"{user}@127.0.0.1:{port}", query="sslmode=disable").geturl()
            for task in self.serving:  # psycopg may never send what it has connected for
                task.cancel()
            await asyncio.gather(*self.serving, return_exceptions=True)

    async def serve(self, reader, writer):
        self.serving.append(asyncio.current_task())
        if self.applied.is_set():  # psycopg asks by a second connection for the end of its statement
            self.release.set()
        committing = asyncio.Event()

        async def pump(source, target, pass_on):
            try:
                while data := await source.read(65536):
                    await pass_on(data)
                    target.write(data)
                    await target.drain()
            finally:
                target.close()

        async def up(data):
            if b"COMMIT" in data:
                committing.set()

        async def down(data):
            if committing.is_set():
                self.applied.set()
                await self.release.wait()

        server = await asyncio.open_connection(self.target.hostname, self.target.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(reader, server[1], up), pump(server[0], writer, down))


@pytest.mark.parametrize("limit", ["anyio", "asyncio"])
def test_a_limit_in_the_middle_of_a_commit_leaves_the_outcome_unknown(dsn, limit):
    """The server has applied it, and the answer is still on its way: its handler must not be run again."""

    async def run() -> httpx.Response:
        held = HeldCommits(dsn)
        sink = PostgresSink(dsn)
        fence = aio.Fence(sink, TrustedNetwork(), replay=sink.replay(), principal=lambda scope: "ann")

        async def pay(request):
            token = await fence.admit(request.scope, "invoice-42")
            async with await psycopg.AsyncConnection.connect(held_dsn) as conn, transaction(conn, token):
                await conn.execute("insert into payment values (1)")
            return PlainTextResponse("paid")

        app = install(Starlette(routes=[Route("/pay", pay, methods=["POST"])]), fence)

        async def limited(scope, receive, send):
            if held.applied.is_set():
                await app(scope, receive, send)
                return
            await ended_at(held.applied, limit, app, scope, receive, send)
            await PlainTextResponse("too late", 504)(scope, receive, send)

        client = httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://a")
        async with held.listening() as held_dsn, client:
            assert (await client.post("/pay", headers=HEADERS)).status_code == 504
            return await client.post("/pay", headers=HEADERS)

    with psycopg.connect(dsn, autocommit=True) as db:
        sinkfence_postgres.install(db)
        db.execute("create table payment (number int)")
        answer = asyncio.run(run())
        assert (answer.status_code, answer.headers["Fencing-Status"]) == (409, "outcome-unknown")
        assert db.execute("select count(*) from payment").fetchone() == (1,)
