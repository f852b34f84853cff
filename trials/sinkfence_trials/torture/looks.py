"""What one look at a database or a bucket shows that is new, past every sink."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

import psycopg

from sinkfence_trials.history import Event, now
from sinkfence_trials.torture.documents import KEPT
from sinkfence_trials.torture.places import Bucket
from sinkfence_trials.torture.run import TTL

RECENT: Final = 200
"""How many of the last rows are looked at again: one may be committed after what was numbered later."""

LATE: Final = 1.0
"""Seconds by which a trigger may read the clock after the statement that it belongs to, on a busy host."""

LOOK: Final = """
SELECT seq, extract(epoch FROM at)::float8, kind, job_id, generation, owner, id, base, key,
       CASE WHEN isfinite(until) THEN extract(epoch FROM until)::float8 END
  FROM torture_seen WHERE seq > %s AND job_id = ANY(%s) ORDER BY seq"""


class Rows:
    """A database: effects, leases, marks.

    `ttls` says for how long an owner asks, by the label of its owner values, where that is not `TTL`.
    """

    def __init__(self, dsn: str, jobs: Sequence[str], ttls: Mapping[str, float]) -> None:
        self._dsn, self._jobs, self._ttls = dsn, list(jobs), ttls
        self._conn: psycopg.Connection[Any] | None = None
        self._seen: set[int] = set()
        self._since = now()

    def look(self) -> Iterator[Event]:
        """Yield what is new; after effects, the marks."""
        begun = now()
        [clock] = self._ask("SELECT extract(epoch FROM clock_timestamp())::float8")[0]
        first = max(self._seen, default=0) - RECENT
        rows = self._ask(LOOK, first, self._jobs)
        self._seen = {seq for seq in self._seen if seq > first}
        latest: dict[str, float] = {}
        with_effects: set[str] = set()
        for seq, at, kind, job, generation, owner, id_, base, key, until in rows:
            if seq in self._seen:
                continue
            self._seen.add(seq)
            # `clock` was read after `begun`, so what was `clock - at` before it was no earlier than this.
            t = max(self._since, min(begun, begun - (clock - at)), latest.get(job, 0.0))
            latest[job] = t
            if kind == "effect":
                with_effects.add(job)
                value = {"sink": "postgres", "owner": owner, "id": id_, "base": base}
                yield Event(t, "observer", "effect", "ok", job, generation, key, value)
                continue
            value = {"owner": owner, "now": at}
            if kind in ("acquire", "renew"):
                ttl = self._ttls.get(owner.rpartition(":")[0], TTL)
                value |= {"until": until, "ttl": ttl, "grain": LATE}
            yield Event(t, "store", kind, "ok", job, generation, None, value)
        self._since = begun
        # Read after the effects, which were no later than `begun`; what is found later is no earlier.
        yield from self.marks(begun, sorted(with_effects))

    def marks(self, t: float, jobs: Sequence[str]) -> Iterator[Event]:
        """Yield the marks of jobs, where they may be read."""
        query = "SELECT job_id, max_generation FROM sinkfence.mark WHERE job_id = ANY(%s)"
        with suppress(psycopg.errors.InsufficientPrivilege):
            for job, mark in self._ask(query, list(jobs)) if jobs else ():
                yield Event(t, "observer", "mark", "ok", job, mark, None, {"sink": "postgres"})

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection().execute(query.encode(), values).fetchall()
        except psycopg.OperationalError:  # the server was killed, and may be there again
            return self._connection().execute(query.encode(), values).fetchall()

    def _connection(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
        return self._conn

    def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            self._conn.close()


class Gap(Exception):
    """An object has had more effects than it shows since it was last looked at: some were not seen."""


class Objects:
    """A bucket: each job's object, which holds its own last effects, and its mark."""

    def __init__(self, bucket: Bucket, jobs: Sequence[str]) -> None:
        self._bucket, self._jobs = bucket, jobs
        self._client = bucket.client(connect_timeout=2, read_timeout=2, retries={"total_max_attempts": 1})
        self._known: dict[str, set[str]] = {job: set() for job in jobs}
        self._tops: dict[str, str | None] = dict.fromkeys(jobs)
        self._since = now()

    def look(self) -> Iterator[Event]:
        """Yield what is new; after effects, the marks."""
        since, begun = self._since, now()
        # All are read before one is taken for seen: the server may be killed between two of them.
        documents = {job: self.document(job) for job in self._jobs}
        self._since = begun
        for job, (mark, log) in documents.items():
            known, top = self._known[job], self._tops[job]
            if known and len(log) == KEPT and not any(entry["id"] in known for entry in log):
                raise Gap(f"{job} has had more effects than the {KEPT} that it shows")
            new = [entry for entry in log if entry["id"] not in known]
            if log and not new and log[-1]["id"] != top:
                new = [log[-1]]  # one that had been replaced is there again
            for entry in new:
                known.add(entry["id"])
                value = {name: entry[name] for name in ("owner", "id", "base")} | {"sink": "s3"}
                yield Event(since, "observer", "effect", "ok", job, entry["generation"], entry["key"], value)
            self._tops[job] = log[-1]["id"] if log else top
            if new:
                yield Event(begun, "observer", "mark", "ok", job, mark, None, {"sink": "s3"})

    def marks(self, t: float, jobs: Sequence[str]) -> Iterator[Event]:
        """Yield the marks of jobs that have one."""
        for job in jobs:
            if mark := self.document(job)[0]:
                yield Event(t, "observer", "mark", "ok", job, mark, None, {"sink": "s3"})

    def document(self, job: str) -> tuple[int, list[dict[str, Any]]]:
        """Read an object raw, as docs/reference/s3-object-format.md has it: its mark, its last effects."""
        try:
            reply = self._client.get_object(Bucket=self._bucket.name, Key=job)
        except self._client.exceptions.NoSuchKey:
            return 0, []
        # Not by `with reply["Body"]`: that enters urllib3's answer, whose errors are not botocore's.
        with closing(reply["Body"]) as body:
            frame = body.read()
        end = 12 + int.from_bytes(frame[8:12], "big")
        header = json.loads(frame[12:end])
        return header["generation"], json.loads(frame[end:])["log"] if header["content"] == "inline" else []

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
