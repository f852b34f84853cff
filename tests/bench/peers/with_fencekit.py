"""fencekit: its lock's token, `fenced_update` in the user's table, and an owner-checked `mark_done`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

from bench.peers.stage import PATIENCE, TTL, Stage

DISTRIBUTION, MODULES, REDIS = "fencekit", ("fencekit", "django", "redis"), True
KEY, RESOURCE = "doc-1", "doc:1"
DAY = timedelta(hours=24)


def _redis(stage: Stage) -> Any:
    from redis import Redis

    return Redis.from_url(stage.redis, decode_responses=True)


def _docs(dsn: str) -> Any:
    import django
    from django.conf import settings
    from django.db import models

    parts = urlsplit(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    settings.configure(DATABASES={"default": database})
    django.setup()

    class Doc(models.Model):
        id = models.IntegerField(primary_key=True)
        body = models.TextField()
        fence = models.BigIntegerField()

        class Meta:
            app_label = "peers"
            db_table = "doc"
            managed = False

    return Doc.objects


def prepare(stage: Stage) -> None:
    _redis(stage).flushdb()


def work(stage: Stage) -> None:
    from fencekit import BeginOutcome, DistributedLock, IdempotencyGuard, fenced_update

    redis = _redis(stage)
    guard, lock = IdempotencyGuard(redis), DistributedLock(redis)
    end = time.monotonic() + PATIENCE
    while guard.try_begin_or_reclaim(KEY, lock=lock, lock_resource=RESOURCE, ttl=DAY) not in (
        BeginOutcome.BEGUN,
        BeginOutcome.RECLAIMED,
    ):
        assert time.monotonic() < end, "the lock of the other one doesn't lapse"
        time.sleep(0.1)
    handle = lock.acquire(RESOURCE, ttl=timedelta(seconds=TTL), owner_id=guard.owner_id)
    stage.inside()
    with stage.trying("effect"):
        fenced_update(
            _docs(stage.dsn).filter(pk=1),
            handle.token,
            updates={"body": stage.role},
            fence_field="fence",
            raise_on_stale=True,
        )
    with stage.trying("completion"):
        guard.mark_done(KEY, result=stage.role, ttl=DAY)
    with stage.trying("release"):
        lock.release(handle)


def record(stage: Stage) -> str:
    from fencekit import IdempotencyGuard, IdempotencyResultMissing

    try:
        return str(IdempotencyGuard(_redis(stage)).get_result(KEY))
    except IdempotencyResultMissing:
        return "nobody"
