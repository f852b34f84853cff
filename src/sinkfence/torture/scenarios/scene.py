"""The scene of one scenario: its job, its workers, the networks in their way, and what is seen of it all."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import psycopg

import sinkfence_postgres
from sinkfence.demo.process import Process
from sinkfence.demo.servers.supervised import ServerError
from sinkfence.stores.sql import SqlStore
from sinkfence.torture.history import History
from sinkfence.torture.proxy import FaultProxy
from sinkfence.torture.run import NotRun, Run
from sinkfence.torture.scenarios.actor import Actor
from sinkfence.torture.scenarios.observer import Observer

T = TypeVar("T")

TTL: Final = 1.0
"""Seconds of a lease: short, for most scenarios wait until one has run out."""

CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
"""The database's clock, in seconds."""

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS scenario_effect (seq bigserial PRIMARY KEY, job text, generation bigint,
        owner text, id text, step text, base text, payload bytea);
    CREATE TABLE IF NOT EXISTS scenario_lease (seq bigserial PRIMARY KEY, at timestamptz, kind text, job text,
        generation bigint, owner text, until timestamptz);
    CREATE OR REPLACE FUNCTION scenario_lease_changed() RETURNS trigger LANGUAGE plpgsql
        SET search_path FROM CURRENT AS $$ BEGIN
        INSERT INTO scenario_lease (at, kind, job, generation, owner, until) VALUES (clock_timestamp(),
            CASE WHEN TG_OP = 'INSERT' OR NEW.generation > OLD.generation THEN 'acquire'
                 WHEN NEW.owner IS NULL THEN 'release' ELSE 'renew' END,
            NEW.job_id, NEW.generation,
            CASE WHEN TG_OP = 'INSERT' THEN NEW.owner ELSE coalesce(NEW.owner, OLD.owner) END,
            NEW.lease_until);
        RETURN NULL;
    END $$;
    DROP TRIGGER IF EXISTS scenario ON sinkfence_lease;
    CREATE TRIGGER scenario AFTER INSERT OR UPDATE ON sinkfence_lease
        FOR EACH ROW EXECUTE FUNCTION scenario_lease_changed()"""
"""Effects, and what becomes of leases: heartbeats renew and give back without a word to anybody."""


class Inconclusive(Exception):
    """The fault did not take place as it should have: nothing was shown, either way."""


class Broken(Exception):
    """What the scenario is about did not hold."""


@dataclass
class Scene:
    """One scenario's. What is opened here is closed at its end."""

    run: Run
    job: str
    fenced: bool
    """Whether the destinations check; else the workers go round the checks, to show that it would be seen."""
    history: History
    observer: Observer
    stack: ExitStack
    service: Process | None = None

    @property
    def dsn(self) -> str:
        """The database of leases and, where nothing else is said, of effects."""
        return self.run.places.postgres

    def actor(
        self,
        name: str,
        to: str = "table",
        *,
        environment: Mapping[str, str] | None = None,
        module: str = "worker",
        **brief: Any,
    ) -> Actor:
        """Start a worker, whose destination is `to`: "table", "object" or "service".

        The brief may have other addresses (`leases`, `ledger`, `bucket`, `service`), and `ttl`, `heartbeat`
        and `floor`.
        """
        actor = self.stack.enter_context(Actor(name, module, environment))
        known = {
            "name": name,
            "label": name,
            "seen": self.observer.sees_leases,
            "folder": str(self.run.folder),
            "job": self.job,
            "to": to,
            "fenced": self.fenced,
            "ttl": TTL,
            "leases": self.dsn,
            "ledger": self.dsn,
            "bucket": asdict(self.run.places.bucket),
        }
        self.observer.ttls[name] = brief.get("ttl", TTL)
        actor.begin(known | brief)
        return actor

    def start_service(self) -> str:
        """Start the HTTP service that writes to the table, and return its URL."""
        self.service = Process("the service", "sinkfence.torture.scenarios.service")
        self.stack.enter_context(self.service)
        self.service.begin({"dsn": self.dsn, "fenced": self.fenced})
        return f"http://127.0.0.1:{self.service.hear('listens')['port']}"

    def proxy(self, url: str) -> FaultProxy:
        """Put a network before the server of a URL."""
        parts = urlsplit(url)
        return self.stack.enter_context(FaultProxy(parts.hostname or "127.0.0.1", parts.port or 5432))

    def have(self, server: AbstractContextManager[T]) -> T:
        """Start a server of this scenario's own.

        Raises:
            NotRun: it cannot be had here.
        """
        try:
            return self.stack.enter_context(server)
        except ServerError as error:
            raise NotRun(str(error)) from None

    def expect(self, held: bool, what: str) -> None:
        """What the scenario is about; without checks it is the history that tells."""
        if self.fenced and not held:
            raise Broken(what)


def took_place(held: bool, what: str) -> None:
    """Whether the fault was what it was to be."""
    if not held:
        raise Inconclusive(what)


def prepare(dsn: str) -> None:
    """Make the marks, the leases and the table of effects; where they are, nothing happens."""
    with closing(SqlStore(dsn)) as store:
        store.create_schema()
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute(TABLES)


@contextmanager
def scene(run: Run, name: str, *, fenced: bool) -> Generator[Scene]:
    """Prepare the scene of a scenario, whose histories go into the run's folder."""
    prepare(run.places.postgres)
    job = f"{run.places.prefix}{name}"
    with ExitStack() as stack:
        history = stack.enter_context(run.history("scene"))
        observer = stack.enter_context(Observer(run.history("observer"), job, run.places.postgres))
        yield Scene(run, job, fenced, history, observer, stack)
        observer.look()
