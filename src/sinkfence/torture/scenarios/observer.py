"""What the destinations show, read past the sinks and written down as the truth of a history."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, LiteralString, Self

import psycopg

from sinkfence.demo.process import PATIENCE
from sinkfence.torture.history import Event
from sinkfence.torture.places import Bucket

MAGIC: Final = b"\x89SFREG\r\n"
"""How a fenced object begins (docs/reference/s3-object-format.md)."""

EFFECTS: Final = "SELECT generation, owner, id, step, base FROM scenario_effect WHERE job = %s ORDER BY seq"


class Observer:
    """Looks when it is told to. What is new since the last look happened after that look began."""

    def __init__(self, path: Path, job: str, dsn: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._job = job
        self._since = time.clock_gettime(time.CLOCK_MONOTONIC)
        self._seen: list[str] = []
        self._object: tuple[Any, str, str] | None = None
        self.dsn = dsn
        """The database of the effects: another one where the scenario says so."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def watch(self, bucket: Bucket) -> None:
        """Look at the job's object in a bucket, too."""
        self._object = bucket.client(), bucket.name, self._job

    def look(self) -> list[str]:
        """Write down what is new, and return the ids of all effects so far, in the order of being seen."""
        begun = time.clock_gettime(time.CLOCK_MONOTONIC)
        for effect in [*self._rows(), *self._content()]:
            if effect["id"] not in self._seen:
                self._seen.append(effect["id"])
                value: dict[str, Any] = {
                    name: effect[name] for name in ("owner", "id", "base") if name in effect
                }
                self._write("effect", effect["generation"], effect.get("step"), value)
        for (mark,) in self.ask("SELECT max_generation FROM sinkfence.mark WHERE job_id = %s", self._job):
            self._write("mark", mark, None, {})
        self._since = begun
        return list(self._seen)

    def ask(self, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database of the effects, over a connection for this question."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(query, values).fetchall()

    def wait_for(self, what: str, query: LiteralString, *values: object) -> None:
        """Return when a query's one value is true.

        Raises:
            TimeoutError: it did not become true; nothing is concluded from how long it took.
        """
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while conn.execute(query, values).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"waited in vain: {what}")
                conn.execute("SELECT pg_sleep(0.01)")

    def _write(self, f: str, generation: int, key: str | None, value: dict[str, Any]) -> None:
        event = Event(self._since, "observer", f, "ok", self._job, generation, key, value)
        os.write(self._file, event.line().encode() + b"\n")

    def _rows(self) -> Iterator[dict[str, Any]]:
        for generation, owner, this, step, base in self.ask(EFFECTS, self._job):
            yield {"generation": generation, "owner": owner, "id": this, "step": step, "base": base}

    def _content(self) -> Iterator[dict[str, Any]]:
        """What the object holds now: written through the sink, it is behind a header; else as it was put."""
        if self._object is None:
            return
        client, bucket, key = self._object
        try:
            frame: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return
        if frame.startswith(MAGIC):
            start = len(MAGIC) + 4
            frame = frame[start + int.from_bytes(frame[len(MAGIC) : start], "big") :]
        if frame:
            yield json.loads(frame)
