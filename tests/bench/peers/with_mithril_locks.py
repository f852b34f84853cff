"""mithril-locks: a lock in PostgreSQL, and its fencing token in a condition that the user writes."""

from __future__ import annotations

from typing import Any

import psycopg

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "mithril-locks", ("mithril", "psycopg2"), False


def _lock(stage: Stage, timeout: float = PATIENCE) -> Any:
    import sqlalchemy as sa
    from mithril import Lock
    from mithril.backends import PostgresBackend

    engine = sa.create_engine(stage.dsn.replace("postgresql:", "postgresql+psycopg2:"))
    return Lock("doc-1", backend=PostgresBackend(engine), ttl=TTL, timeout=timeout, auto_renewal=True)


def prepare(stage: Stage) -> None:
    with _lock(stage):  # makes its tables
        pass


def work(stage: Stage) -> None:
    with _lock(stage) as token:
        stage.inside()
        with stage.trying("effect"), psycopg.connect(stage.dsn) as conn:
            done = conn.execute(
                "update doc set body = %(body)s, fence = %(fence)s where id = 1 and fence <= %(fence)s",
                {"body": stage.role, "fence": token.fencing_token},
            )
            if not done.rowcount:
                stage.heard.append("effect: no row was updated")


def record(stage: Stage) -> str:
    from mithril.exceptions import LockTimeoutError

    try:
        with _lock(stage, timeout=0):
            return "free"
    except LockTimeoutError:
        return "held"
