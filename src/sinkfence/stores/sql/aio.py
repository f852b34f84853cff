"""The store in a database, for an event loop: the same statements, awaited; SQLite's in one thread."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sinkfence.errors import GenerationExhausted
from sinkfence.grants import Grant, Record
from sinkfence.process import Process, this_process
from sinkfence.stores.sql import records, statements
from sinkfence.stores.sql import store as threads
from sinkfence.stores.sql.attempts import Attempts
from sinkfence.stores.sql.callers import kind_of, noted
from sinkfence.stores.sql.connections import TIMEOUTS, full_url, make_engine, pool_like
from sinkfence.stores.sql.dialects import POSTGRESQL, SQLITE, Query, Row, inside
from sinkfence.stores.sql.records import Change
from sinkfence.stores.sql.sending import OUTDATED, UNPREPARED, pyformat, sqlstate, text
from sinkfence.stores.sql.sessions import listen
from sinkfence.tokens import MAX_GENERATION, Token, check_generation, check_job_id

__all__ = ["SqlStore"]

T = TypeVar("T")
Fetch = Callable[[Query], Awaitable[Sequence[Row]]]

_ASYNCPG: Final = {
    "timeout": 5.0,
    "command_timeout": 10.0,
    # A pooler may hand the next statement to another server process, where a counted name is another's.
    "prepared_statement_name_func": lambda: f"sinkfence-{uuid.uuid4()}",
}


class SqlStore:
    """As `sinkfence.stores.sql.SqlStore`: a URL of psycopg, asyncpg or SQLite, or an AsyncEngine.

    The heartbeat's thread renews over a synchronous connection, which nothing that blocks the loop holds
    up: to PostgreSQL by psycopg, also where asyncpg does the rest. `sync` is the URL or Engine for that,
    where it cannot be made of the first one: it has asyncpg's own options, or is an engine that logs in by
    its connect_args. It is tried at the first call.

    Connections belong to the event loop they were made in. Close in each loop what you use in several.

    Raises:
        ImportError: a driver is not installed, or greenlet, which SQLAlchemy awaits by.
    """

    durable: bool = True

    def __init__(
        self,
        url_or_engine: str | sa.URL | AsyncEngine,
        *,
        floor: Literal["clock"] | None = None,
        sync: str | sa.URL | sa.Engine | None = None,
    ) -> None:
        self._source = url_or_engine
        url = url_or_engine.url if isinstance(url_or_engine, AsyncEngine) else full_url(url_or_engine)
        try:
            self.sync: threads.SqlStore = threads.SqlStore(
                _synchronous(url) if sync is None else sync, floor=floor
            )
        except ImportError as missing:
            missing.add_note("The heartbeat's thread needs a synchronous driver, whatever the loop uses.")
            raise
        self._lite = url.get_backend_name() == "sqlite"
        self._by_clock = floor == "clock"
        self._dialect = SQLITE if self._lite else POSTGRESQL
        # By process and loop, and kept: a forked child must not close its parent's connections.
        self._engines: dict[tuple[Process, asyncio.AbstractEventLoop], AsyncEngine] = {}
        self._threads: dict[Process, ThreadPoolExecutor] = {}
        if not self._lite:
            self._engine()  # what cannot be made is told now

    def __repr__(self) -> str:
        return repr(self.sync)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SqlStore stays with its process: make one in each, of the same URL")

    @property
    def jumps(self) -> bool:
        """As `Store.jumps`."""
        return self._by_clock

    async def create_schema(self) -> None:
        """As `sinkfence.stores.sql.SqlStore.create_schema`."""
        await self._in_thread(self.sync.create_schema)

    async def acquire(self, job_id: str, owner: str, ttl: float) -> Grant:
        """As `Store.acquire`."""
        change = statements.acquire(self._dialect, check_job_id(job_id), owner, ttl, by_clock=self._by_clock)
        with threads.blocked_is_held(job_id):
            grant, clock = await self._change(change)
        return threads.checked(grant, clock) if self._by_clock else grant

    async def reacquire_above(self, token: Token, n: int, owner: str, ttl: float) -> Grant | None:
        """As `Store.reacquire_above`."""
        change = statements.reacquire_above(self._dialect, token, n, owner, ttl, by_clock=self._by_clock)
        return await self._change(change)

    async def renew(self, token: Token, ttl: float, conn: object = None) -> datetime:
        """As `Store.renew`."""
        return await self._change(statements.renew(inside(self._dialect, conn), token, ttl), conn)

    async def complete(self, token: Token, result: str | None, conn: object = None) -> None:
        """As `Store.complete`."""
        await self._change(statements.complete(inside(self._dialect, conn), token, result), conn)

    async def release(self, token: Token, conn: object = None) -> None:
        """As `Store.release`."""
        await self._change(statements.release(inside(self._dialect, conn), token), conn)

    async def get(self, job_id: str) -> Record | None:
        """As `Store.get`."""
        rows = await self._fetch(records.look(self._dialect, check_job_id(job_id)))
        return records.record(rows[0]) if rows else None

    async def list(self, prefix: str) -> Sequence[Record]:
        """As `Store.list`."""
        return [records.record(row) for row in await self._fetch(records.look_under(self._dialect, prefix))]

    async def reopen(self, job_id: str, *, seen: Record | None = None) -> Record:
        """As `sinkfence.stores.sql.SqlStore.reopen`."""
        return await self._change(records.reopen(self._dialect, check_job_id(job_id), seen))

    async def raise_above(self, job_id: str, n: int, *, seen: Record | None = None) -> Record:
        """As `sinkfence.stores.sql.SqlStore.raise_above`."""
        if check_generation(n) == MAX_GENERATION:
            raise GenerationExhausted
        return await self._change(records.raise_above(self._dialect, check_job_id(job_id), n, seen))

    async def close(self) -> None:
        """As `Store.close`, in this event loop; and the connections of the heartbeat."""
        engine = self._engines.pop((this_process(), asyncio.get_running_loop()), None)
        if engine is not None:
            await engine.dispose()
        await self._in_thread(self.sync.close)
        # It ends once nobody refers to it: another loop may just be sending work there.
        self._threads.pop(this_process(), None)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Work in a thread of the store's own: the loop's may all be busy, and wait for a lease."""
        process = this_process()
        thread = self._threads.get(process)
        if thread is None:
            thread = self._threads.setdefault(process, ThreadPoolExecutor(1, "sinkfence-store"))
        call = partial(contextvars.copy_context().run, work, *arguments)
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    async def _change(self, change: Change[T], conn: object = None) -> T:
        if conn is not None:
            return await _make_change(change, partial(_fetch_in, conn), provisional=True)
        if self._lite:
            return await self._in_thread(self.sync.change, change)
        return await self._run(partial(_make_change, change))

    async def _fetch(self, query: Query) -> Sequence[Row]:
        if self._lite:
            return await self._in_thread(self.sync.fetch, query)
        return await self._run(lambda fetch: fetch(query))

    async def _run(self, work: Callable[[Fetch], Awaitable[T]]) -> T:
        if not self.sync.is_checked:
            # In the heartbeat's way: where that one can't connect, no lease would live.
            await self._in_thread(self.sync.check)
        key = this_process(), asyncio.get_running_loop()
        if key not in self._engines:
            for process, loop in list(self._engines):
                if process == key[0] and loop.is_closed():
                    self._engines.pop((process, loop), None)  # another loop tidies up, too
            self._engines[key] = self._engine()
        attempts = Attempts(OSError)
        for wait in attempts:
            if wait:
                await asyncio.sleep(wait)
            with attempts.judged():
                async with self._engines[key].connect() as connection:
                    attempts.connected = True

                    async def fetch(query: Query) -> Sequence[Row]:
                        try:
                            return (await connection.execute(text(query.sql), query.params)).all()
                        except DBAPIError as error:
                            if sqlstate(error) in UNPREPARED:
                                await connection.invalidate(error)
                            if sqlstate(error) in OUTDATED:  # those of the others, too
                                await self._engines[key].dispose()
                            raise

                    return await work(fetch)
        raise attempts.outcome()

    def _engine(self) -> AsyncEngine:
        source = self._source
        options: dict[str, Any]
        if isinstance(source, AsyncEngine):
            url, options = source.url, {"pool": pool_like(source.sync_engine)}
        else:
            url = full_url(source)
            asyncpg = url.get_driver_name() == "asyncpg"
            arguments: dict[str, Any] = {**(_ASYNCPG if asyncpg else TIMEOUTS)}
            options = {"connect_args": {k: v for k, v in arguments.items() if k not in url.query}}
        engine = make_engine(create_async_engine, url, options)
        listen(engine.sync_engine)
        return engine


async def _make_change(change: Change[T], fetch: Fetch, *, provisional: bool = False) -> T:
    rows = await fetch(change.query)
    return change.took(rows[0]) if rows else change.explain(await fetch(change.look), provisional=provisional)


async def _fetch_in(conn: Any, query: Query) -> Sequence[Row]:
    with noted():
        if kind_of(conn, "asynchronous") == "sqlalchemy":
            rows: Sequence[Row] = (await conn.execute(text(query.sql), query.params)).all()
            return rows
        import psycopg
        from psycopg.rows import tuple_row

        async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(pyformat(query.sql).encode(), query.params)
            fetched: Sequence[Row] = await cursor.fetchall()
            return fetched


def _synchronous(url: sa.URL) -> sa.URL:
    if url.get_backend_name() == "sqlite":
        return url.set(drivername="sqlite")
    if url.get_driver_name() != "asyncpg":
        return url
    if url.query:
        raise ValueError(
            f"the options {sorted(url.query)} are asyncpg's, and the heartbeat connects by psycopg: "
            "say by sync= how (postgresql+psycopg://...)"
        )
    return url.set(drivername="postgresql+psycopg")
