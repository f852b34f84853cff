"""pgqueuer: a job that is picked again after its heartbeat has stopped."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psycopg

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "pgqueuer", ("pgqueuer", "asyncpg"), False


def prepare(stage: Stage) -> None:
    async def enqueue() -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(stage.dsn)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.enqueue("effect", None)
        await connection.close()

    asyncio.run(enqueue())


def work(stage: Stage) -> None:
    async def run() -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.models import Job
        from pgqueuer.types import QueueExecutionMode

        worked, end = [], time.monotonic() + PATIENCE
        while not worked and time.monotonic() < end:
            connection = await asyncpg.connect(stage.dsn)
            pgq = PgQueuer(AsyncpgDriver(connection))

            @pgq.entrypoint("effect")
            async def effect(job: Job) -> None:
                stage.inside()
                with stage.trying("effect"):
                    stage.write()
                worked.append(job.id)

            await pgq.qm.run(
                mode=QueueExecutionMode.drain,
                heartbeat_timeout=timedelta(seconds=TTL),
                dequeue_timeout=timedelta(seconds=0.2),
            )
            await connection.close()

    asyncio.run(run())


def record(stage: Stage) -> str:
    with psycopg.connect(stage.dsn) as conn:
        [times] = conn.execute("select count(*) from pgqueuer_log where status = 'successful'").fetchone()
    return str(times)
