"""idemkit: a function that runs once per key, recorded in PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "idemkit", ("idemkit", "asyncpg"), False


def prepare(stage: Stage) -> None:
    from idemkit.backends.postgres import init_pg

    asyncio.run(init_pg(stage.dsn))


def work(stage: Stage) -> None:
    from idemkit import MethodConfig, PostgresBackend, idempotent_sync
    from idemkit.core.events import Decision

    def event(told: Any) -> None:
        if told.decision in (Decision.LEASE_RECLAIMED_LOSS, Decision.COMPLETE_FAILED):
            stage.heard.append(f"completion: event {told.decision.value}")

    config = MethodConfig(
        key_fields=["doc"], lease_ttl_seconds=TTL, wait_timeout_seconds=TTL / 2, event_handlers=(event,)
    )

    ran = []

    @idempotent_sync(backend=PostgresBackend.from_url(stage.dsn), config=config)
    def effect(*, doc: int) -> str:
        ran.append(doc)
        stage.inside()
        with stage.trying("effect"):
            stage.write()
        return stage.role

    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer = effect(doc=1)
            if answer != stage.role:
                stage.heard.append(f"completion: was given the result of the {answer}")
            return
        except Exception as error:  # the other one has a live claim
            if ran:
                stage.heard.append(f"completion: {type(error).__name__}")
                return
            if time.monotonic() > end:
                raise


def record(stage: Stage) -> str:
    with psycopg.connect(stage.dsn) as conn:
        row = conn.execute("select state, response_body from idemkit_records").fetchone()
    if row is None or row[0] != "COMPLETED":
        return "nobody"
    return next((role for role in ("first", "second") if role in bytes(row[1]).decode()), "somebody")
