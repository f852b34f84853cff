"""A database as scenes use it: connections, the server's own waits, and a server that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg

from mutants.scenes import Ground

PATIENCE = 30.0


def with_settings(dsn: str, **settings: str) -> str:
    """The same URI, for sessions with these settings."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return f"{dsn}{'&' if '?' in dsn else '?'}options={quote(options)}"


@contextmanager
def admin(dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A superuser's connection in autocommit, that looks and tampers."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def one(conn: psycopg.Connection[Any], query: str, *args: object) -> Any:
    """The first column of the first row."""
    row = conn.execute(query, args).fetchone()
    assert row is not None
    return row[0]


def blocked_or_done(conn: psycopg.Connection[Any], work: Future[Any], sessions: int = 1) -> bool:
    """Wait until so many sessions of this database wait for locks, or the work is done; whether it waits."""
    query = (
        "select count(*) from pg_locks l join pg_stat_activity a using (pid) "
        "where not l.granted and a.datname = current_database()"
    )
    until = time.monotonic() + PATIENCE
    while not work.done():
        if one(conn, query) >= sessions:
            return True
        assert time.monotonic() < until, "neither blocked nor done"
    return False


@contextmanager
def killed(ground: Ground) -> Generator[None]:
    """Kill the server at the end, with only that in its files which was waited for, and start it again.

    The process that writes in the background what no COMMIT waits for is stopped meanwhile.
    """
    with admin(ground.dsn) as conn:
        writer = one(conn, "select pid from pg_stat_activity where backend_type = 'walwriter'")
    os.kill(writer, signal.SIGSTOP)
    try:
        yield
    finally:
        ground.cluster.kill()
        ground.cluster.start()
