"""A time limit outside of the door: what its request has committed is not taken for undone."""

from __future__ import annotations

import asyncio

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
            if limit == "asyncio":
                task = asyncio.ensure_future(app(scope, receive, send))
                await committed.wait()
                task.cancel()
                await asyncio.wait([task])
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(app, scope, receive, send)
                    await committed.wait()
                    group.cancel_scope.cancel()
            await PlainTextResponse("too late", 504)(scope, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://a") as client:
            assert (await client.post("/pay", headers=HEADERS)).status_code == 504
            return await client.post("/pay", headers=HEADERS)

    with psycopg.connect(dsn, autocommit=True) as db:
        sinkfence_postgres.install(db)
    answer = asyncio.run(run())
    assert (answer.status_code, answer.headers["Fencing-Status"]) == (409, "outcome-unknown")
    assert runs == [7]
