"""What the destinations show, read past the sinks and written down as the truth of a history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final, LiteralString, Self

import psycopg

from sinkfence.demo.process import PATIENCE
from sinkfence.torture.history import Event, History, now
from sinkfence.torture.places import Bucket

MAGIC: Final = b"\x89SFREG\r\n"
"""How a fenced object begins (docs/reference/s3-object-format.md)."""

EFFECTS: Final = "SELECT generation, owner, id, step, base FROM scenario_effect WHERE job = %s ORDER BY seq"


LEASES: Final = """
    SELECT seq, extract(epoch FROM at)::float8, kind, generation, owner,
        CASE WHEN isfinite(until) THEN extract(epoch FROM until)::float8 END
    FROM scenario_lease WHERE job = %s ORDER BY seq"""

LATE: Final = 1.0
"""Seconds by which a trigger may read the clock after the statement that it belongs to, on a busy host."""


class Observer:
    """Looks when it is told to. What is new since the last look happened after that look began."""

    def __init__(self, history: History, job: str, dsn: str) -> None:
        self._history = history
        self._job = job
        self._since = now()
        self._seen: list[str] = []
        self._leases = 0
        self._object: tuple[Any, str, str] | None = None
        self._store = dsn
        self.dsn = dsn
        """The database of the effects: another one where the scenario says so."""
        self.sees_leases = True
        """Whether it is this observer that tells what became of leases; else the workers do."""
        self.ttls: dict[str, float] = {}
        """For how long each owner asks, by the label of its owner values."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._history.__exit__()

    def watch(self, bucket: Bucket) -> None:
        """Look at the job's object in a bucket, too."""
        self._object = bucket.client(), bucket.name, self._job

    def look(self) -> list[str]:
        """Write down what is new, and return the ids of all effects so far, in the order of being seen."""
        begun = now()
        if self.sees_leases:
            self._look_at_leases()
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
        return asked(self.dsn, query, *values)

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
        self._history.write(Event(self._since, "observer", f, "ok", self._job, generation, key, value))

    def _look_at_leases(self) -> None:
        rows = asked(self._store, LEASES, self._job)
        for _, at, kind, generation, owner, until in rows[self._leases :]:
            value = {"owner": owner, "now": at}
            if kind != "release":
                ttl = self.ttls[owner.rpartition(":")[0]]
                value |= {"until": until, "ttl": ttl, "grain": LATE}
            self._history.write(Event(self._since, "store", kind, "ok", self._job, generation, None, value))
        self._leases = len(rows)

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


def asked(dsn: str, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    """Ask a database, over a connection for this question."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query, values).fetchall()
