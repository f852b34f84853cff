"""The truth of a run, by ways that no sink takes part in: triggers, objects read raw, acknowledgements."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import psycopg
from botocore.exceptions import BotoCoreError, ClientError

from sinkfence.torture.history import Event, now
from sinkfence.torture.run import Run

LOOK_EVERY: Final = 0.1
"""Seconds."""

RECENT: Final = 200
"""How many of the last rows are looked at again: one may be committed after what was numbered later."""

LATE: Final = 1.0
"""Seconds by which a trigger may read the clock after the statement that it belongs to, on a busy host."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS torture_entry (seq bigserial PRIMARY KEY, job_id text, generation bigint,
    owner text, id text, base text, key text);
CREATE TABLE torture_seen (seq bigserial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp(), kind text,
    job_id text, generation bigint, owner text, id text, base text, key text, until timestamptz);

CREATE FUNCTION torture_entry_seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO torture_seen (kind, job_id, generation, owner, id, base, key)
    VALUES ('effect', NEW.job_id, NEW.generation, NEW.owner, NEW.id, NEW.base, NEW.key);
    RETURN NULL;
END $$;
-- At COMMIT: the order of the rows is that in which they were applied, not that in which they were sent.
CREATE CONSTRAINT TRIGGER seen AFTER INSERT ON torture_entry DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION torture_entry_seen();

CREATE FUNCTION torture_lease_seen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO torture_seen (kind, job_id, generation, owner, until) VALUES (
        CASE WHEN TG_OP = 'INSERT' OR NEW.generation > OLD.generation THEN 'acquire'
             WHEN NEW.state = 'done' THEN 'complete'
             WHEN NEW.owner IS NULL THEN 'release'
             ELSE 'renew' END,
        NEW.job_id, NEW.generation, CASE WHEN TG_OP = 'INSERT' THEN NEW.owner
                                         ELSE coalesce(NEW.owner, OLD.owner) END, NEW.lease_until);
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER INSERT OR UPDATE ON sinkfence_lease
    FOR EACH ROW EXECUTE FUNCTION torture_lease_seen();
"""

LOOK: Final = """
SELECT seq, extract(epoch FROM at)::float8, kind, job_id, generation, owner, id, base, key,
       CASE WHEN isfinite(until) THEN extract(epoch FROM until)::float8 END
  FROM torture_seen WHERE seq > (SELECT coalesce(max(seq), 0) FROM torture_seen) - %s ORDER BY seq"""


class Observer:
    """Looks again and again, on a thread of its own, and writes down what is new.

    Of each thing it says an instant that is no later than the thing itself: that of the last look that did
    not show it, or a better one where the database's clock gives it.
    """

    def __init__(self, run: Run, jobs: list[str], ttl: float) -> None:
        self._run, self._jobs, self._ttl = run, jobs, ttl
        self._history = run.history("observer")
        self._conn: psycopg.Connection[Any] | None = None
        self._client = run.places.bucket.client(
            connect_timeout=2, read_timeout=2, retries={"total_max_attempts": 1}
        )
        self._rows: set[int] = set()
        self._documents: dict[str, set[str]] = {job: set() for job in jobs}
        self._tops: dict[str, str | None] = dict.fromkeys(jobs)
        self._looked = {"postgres": now(), "s3": now()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            self.look()

    def close(self) -> None:
        """Look a last time, once nobody works any more, and write down the marks."""
        self._over.set()
        self._thread.join()
        while self.look():
            self._over.wait(LOOK_EVERY)
        self._marks()
        if self._conn is not None:
            self._conn.close()

    def look(self) -> bool:
        """Write down what is new, and return whether there was anything."""
        found: list[Event] = []
        with suppress(psycopg.Error):  # the server is down: it is looked at again
            found += self._look_at_postgres()
        with suppress(BotoCoreError, ClientError):
            found += self._look_at_s3()
        for event in sorted(found, key=lambda event: event.t):
            self._history.write(event)
        return bool(found)

    def _connection(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._run.places.postgres, autocommit=True, connect_timeout=5)
        return self._conn

    def _look_at_postgres(self) -> list[Event]:
        since, begun, conn = self._looked["postgres"], now(), self._connection()
        [clock] = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or [0.0]
        rows = conn.execute(LOOK, (RECENT,)).fetchall()
        self._looked["postgres"] = begun
        found: list[Event] = []
        latest: dict[str, float] = {}
        for seq, at, kind, job, generation, owner, id_, base, key, until in rows:
            if seq in self._rows:
                continue
            self._rows.add(seq)
            # `clock` was read after `begun`, so what was `clock - at` before it was no earlier than this.
            t = max(since, min(begun, begun - (clock - at)), latest.get(job, 0.0))
            latest[job] = t
            if kind == "effect":
                value = {"sink": "postgres", "owner": owner, "id": id_, "base": base}
                found.append(Event(t, "observer", "effect", "ok", job, generation, key, value))
                continue
            value = {"owner": owner, "now": at}
            if kind in ("acquire", "renew"):
                value |= {"until": until, "ttl": self._ttl, "grain": LATE}
            found.append(Event(t, "store", kind, "ok", job, generation, None, value))
        return found

    def _look_at_s3(self) -> list[Event]:
        since, begun = self._looked["s3"], now()
        found: list[Event] = []
        # All are read before one is taken for seen: the server may be killed between two of them.
        logs = {job: self.document(job)[1] for job in self._jobs}
        for job, log in logs.items():
            known, top = self._documents[job], self._tops[job]
            new = [entry for entry in log if entry["id"] not in known]
            if log and not new and log[-1]["id"] != top:
                new = [log[-1]]  # one that had been replaced is there again
            for entry in new:
                known.add(entry["id"])
                value = {name: entry[name] for name in ("owner", "id", "base")} | {"sink": "s3"}
                found.append(
                    Event(since, "observer", "effect", "ok", job, entry["generation"], entry["key"], value)
                )
            self._tops[job] = log[-1]["id"] if log else top
        self._looked["s3"] = begun
        return found

    def document(self, job: str) -> tuple[int, list[dict[str, Any]]]:
        """Read an object raw, as docs/reference/s3-object-format.md has it: its mark, its last effects."""
        try:
            reply = self._client.get_object(Bucket=self._run.places.bucket.name, Key=job)
        except self._client.exceptions.NoSuchKey:
            return 0, []
        with reply["Body"] as body:
            frame = body.read()
        end = 12 + int.from_bytes(frame[8:12], "big")
        header = json.loads(frame[12:end])
        return header["generation"], json.loads(frame[end:])["log"] if header["content"] == "inline" else []

    def _marks(self) -> None:
        query = "SELECT job_id, max_generation FROM sinkfence.mark WHERE job_id = ANY(%s)"
        with suppress(psycopg.errors.InsufficientPrivilege):
            for job, mark in self._connection().execute(query, (self._jobs,)):
                self._mark("postgres", job, mark)
        for job in self._jobs:
            if mark := self.document(job)[0]:
                self._mark("s3", job, mark)

    def _mark(self, sink: str, job: str, mark: int) -> None:
        self._history.write(Event(now(), "observer", "mark", "ok", job, mark, None, {"sink": sink}))


def acknowledged(events: Iterable[Event]) -> list[Event]:
    """What a service that nobody looks into has done as far as its answers say, as effects.

    Each at the instant at which it was sent: no later than it was applied, wherever that was.
    """
    sent: dict[str, Event] = {}
    found: dict[str, Event] = {}
    for event in events:
        if event.f == "write" and event.value.get("sink") == "http":
            this = event.value["id"]
            if event.type == "invoke":
                sent[this] = event
            elif event.type == "ok":
                value = {name: event.value[name] for name in ("sink", "owner", "id")}
                found[this] = Event(
                    sent[this].t, "observer", "effect", "ok", event.job, event.generation, None, value
                )
    return sorted(found.values(), key=lambda event: event.t)
