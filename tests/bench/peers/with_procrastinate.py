"""procrastinate: a worker whose heartbeat stops, and the retry of stalled jobs of its documentation."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "procrastinate", ("procrastinate",), False


def _app(stage: Stage) -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=stage.dsn))

    @app.task(name="effect")
    async def effect() -> None:
        stage.inside()
        with stage.trying("effect"):
            stage.write()
        stage.worked = True  # type: ignore[attr-defined]

    return app


def prepare(stage: Stage) -> None:
    async def defer() -> None:
        app = _app(stage)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await app.tasks["effect"].defer_async()

    asyncio.run(defer())


def work(stage: Stage) -> None:
    async def run() -> None:
        app, end = _app(stage), time.monotonic() + PATIENCE
        async with app.open_async():
            while not hasattr(stage, "worked") and time.monotonic() < end:
                if stage.role == "second":
                    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=TTL):
                        await app.job_manager.retry_job(job)
                await app.run_worker_async(
                    wait=False,
                    update_heartbeat_interval=TTL / 3,
                    stalled_worker_timeout=TTL,
                    install_signal_handlers=False,
                )
                await asyncio.sleep(0.1)

    asyncio.run(run())


def record(stage: Stage) -> str:
    with psycopg.connect(stage.dsn) as conn:
        [times] = conn.execute(
            "select count(*) from procrastinate_events where type = 'succeeded'"
        ).fetchone()
    return str(times)
