"""The same transaction by Django's ORM: fencekit's check of a generation column works on querysets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from sinkfence.tokens import Token


class Djangos:
    """Ways to write a row of the table `doc`. The connection is the thread's own, made by Django."""

    def __init__(self, dsn: str) -> None:
        import django
        from django.conf import settings

        parts = urlsplit(dsn)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname,
            "PORT": parts.port,
            "CONN_MAX_AGE": None,
        }
        settings.configure(ALLOWED_HOSTS=["*"], DATABASES={"default": database}, USE_TZ=True)
        django.setup()

    @cached_property
    def model(self) -> Any:
        from django.db import models

        class Doc(models.Model):
            id = models.IntegerField(primary_key=True)
            body = models.TextField()
            generation = models.BigIntegerField()

            class Meta:
                app_label = "bench"
                db_table = "doc"
                managed = False

        return Doc

    def bare(self, _: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
        from django.db.transaction import atomic

        with atomic():
            work()
            self.model.objects.filter(pk=row).update(body="body")

    def fenced(self, _: psycopg.Connection, mine: Token, row: int, work: Callable[[], None]) -> None:
        from django.db.transaction import atomic
        from fencekit.storage import fenced_update
        from fencekit.types import FenceToken

        known = FenceToken(mine.generation, mine.job_id)
        with atomic():
            work()
            rows = self.model.objects.filter(pk=row)
            assert fenced_update(rows, known, updates={"body": "body"}, fence_field="generation")

    def close(self) -> None:
        """Close the connection of this thread."""
        from django.db import connections

        connections.close_all()
