"""Work that a coroutine has handed to a thread: inside a host's gate only if it survives a cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio.to_thread
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async

import sinkfence_http
from sinkfence import Token
from sinkfence_http import host_replay
from sinkfence_http.aio import HostGate
from sinkfence_http.answers import Refused


async def django(work: Callable[[], None]) -> None:
    """As Django has it: each request in a context of its own, which ends with its thread."""
    async with ThreadSensitiveContext():
        await sync_to_async(work)()


async def shielded(work: Callable[[], None]) -> None:
    """As docs/how-to/fence-without-a-database.md has it."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(thread)
    finally:
        await asyncio.wait([thread])


def by_task(request: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """A request that its framework ends by cancelling its task, as Django does when its client has gone."""
    task = asyncio.ensure_future(request())
    return task, task.cancel


def by_scope(request: Callable[[], Any]) -> tuple[Any, Callable[[], Any]]:
    """A request that its framework ends by a scope of anyio's, as Starlette does."""
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await request()

    return asyncio.ensure_future(scoped()), scope.cancel


@pytest.mark.parametrize(
    ("way", "begin", "effects"),
    [
        (asyncio.to_thread, by_task, [8, 7]),
        (asyncio.to_thread, by_scope, [8, 7]),
        (anyio.to_thread.run_sync, by_task, [8, 7]),
        (anyio.to_thread.run_sync, by_scope, [7, 8]),
        (django, by_task, [7, 8]),
        (shielded, by_task, [7, 8]),
    ],
    ids=["to_thread-task", "to_thread-scope", "anyio-task", "anyio-scope", "django-task", "shielded-task"],
)
def test_a_cancelled_request_whose_thread_works_on(tmp_path, way, begin, effects):
    """A bare to_thread lets 7 write after 8, and anyio's does when a task is cancelled: the docs say so.

    These rows have to fail as long as they do. Who waits for the thread's end keeps 8 out until then.
    """
    written: list[int] = []
    working, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        go.wait()
        written.append(7)
        done.set()

    async def race() -> None:
        gate = HostGate(tmp_path, drain_timeout=0.2)
        seven, eight = (Token("job", number, f"o{number}") for number in (7, 8))
        await gate.announce(seven)

        async def request() -> None:
            async with gate.enter(seven):
                await way(work)

        task, cancel = begin(request)
        await asyncio.to_thread(working.wait)
        cancel()
        holds = effects == [7, 8]
        if holds:
            with pytest.raises(Refused):
                await gate.announce(eight)
            go.set()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await gate.announce(eight)
        async with gate.enter(eight):
            written.append(8)
        go.set()
        await asyncio.to_thread(done.wait)

    asyncio.run(race())
    assert written == effects


def test_handlers_that_have_used_up_the_loop_s_threads_keep_no_mark_from_rising(tmp_path):
    """The gate has threads of its own."""

    async def scene() -> None:
        go = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        stalled = asyncio.ensure_future(asyncio.to_thread(go.wait))
        gate = HostGate(tmp_path)
        replay = gate.replay()
        token = Token("job", 7, "o7")
        try:
            await gate.announce(token)
            async with gate.enter(token), replay.claim(token, "k", "f") as claim:
                await claim.keep("done")
        finally:
            go.set()
            await stalled

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_claim_that_was_given_up_leaves_no_key_in_progress(tmp_path, monkeypatch):
    """Also where its record can't be removed, as the file is busy: its attempt has ended nevertheless."""
    token = Token("job", 7, "o7")
    replay = sinkfence_http.HostGate(tmp_path).replay()
    claim = replay.begin(token, "k", "f")
    monkeypatch.setattr(host_replay, "WAIT", 0.01)
    with host_replay.transaction(tmp_path):
        with pytest.raises(sqlite3.OperationalError):
            claim.leave(undone=True)
    with replay.claim(token, "k", "f") as again:
        assert again.state == "unknown"


def test_a_claim_whose_loop_has_ended_leaves_no_key_in_progress(tmp_path, monkeypatch):
    """The thread that begins it waits for the file meanwhile, and comes back to a loop that is no more."""
    token, begun, left = Token("job", 7, "o7"), threading.Event(), threading.Event()
    begin, close = host_replay.HostReplay.begin, host_replay.HostClaim.close

    def watched(*arguments):
        begun.set()
        return begin(*arguments)

    def closed(claim):
        close(claim)
        if claim.state == "run":
            left.set()

    monkeypatch.setattr(host_replay.HostReplay, "begin", watched)
    monkeypatch.setattr(host_replay.HostClaim, "close", closed)

    async def claim() -> None:
        async with HostGate(tmp_path).replay().claim(token, "k", "f"):
            raise AssertionError("not reached")

    loop = asyncio.new_event_loop()
    task = loop.create_task(claim())
    with host_replay.transaction(tmp_path):
        loop.run_until_complete(asyncio.sleep(0))
        begun.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()
    left.wait()
    with sinkfence_http.HostGate(tmp_path).replay().claim(token, "k", "f") as again:
        assert again.state == "run"
