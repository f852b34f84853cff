"""The scene of one scenario: its job, its workers, the networks in their way, and what is seen of it all."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, LiteralString, TypeVar
from urllib.parse import urlsplit

import psycopg

from sinkfence_trials.demo.process import PATIENCE
from sinkfence_trials.history import History, read
from sinkfence_trials.servers.supervised import ServerError
from sinkfence_trials.torture.observer import Observer
from sinkfence_trials.torture.proxy import FaultProxy
from sinkfence_trials.torture.run import TTL, NotRun, Run
from sinkfence_trials.torture.scenarios.actor import Actor
from sinkfence_trials.torture.serving import Service
from sinkfence_trials.torture.tables import prepare

T = TypeVar("T")

CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
"""The database's clock, in seconds."""


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
    ledger: str
    """The database of effects; `effects_in` another."""
    service: Service | None = None
    sees_leases: bool = True
    """Whether it is the observer that tells what became of leases; else the workers do."""

    @property
    def dsn(self) -> str:
        """The database of leases, and of effects where nothing else is said."""
        return self.run.places.postgres

    def actor(
        self,
        name: str,
        to: str = "postgres",
        *,
        environment: Mapping[str, str] | None = None,
        program: str = "actor",
        **brief: Any,
    ) -> Actor:
        """Start a worker, whose destination is `to`, one of `SINKS`.

        The brief may have other addresses (`leases`, `ledger`, `bucket`, `service`), and `ttl`, `heartbeat`
        and `floor`.
        """
        process = self.run.nursery.start(name, program, environment or {})
        actor = Actor(self.stack.enter_context(process))
        known = {
            "name": name,
            "label": name,
            "seen": self.sees_leases,
            "folder": str(self.run.folder),
            "job": self.job,
            "to": to,
            "fenced": self.fenced,
            "ttl": TTL,
            "leases": self.dsn,
            "ledger": self.ledger,
            "bucket": asdict(self.run.places.bucket),
            "service": self.service.url if self.service else None,
        }
        self.observer.ttls[name] = brief.get("ttl", TTL)
        process.begin(known | brief)
        return actor

    def start_service(self) -> str:
        """Start the HTTP service, and return its URL."""
        self.service = self.stack.enter_context(closing(Service(self.run.folder, fenced=self.fenced)))
        return self.service.url

    def effects_in(self, dsn: str) -> None:
        """Have the effects in another database."""
        prepare(dsn)
        self.ledger = dsn
        self.observer.look_at(dsn)

    def look(self) -> list[str]:
        """Write down what is new, and return the ids of all effects so far, in their order."""
        self.observer.look()
        return [event.value["id"] for event in read(self.run.histories()) if event.f == "effect"]

    def ends(self, worker: Actor) -> None:
        """Look at what is there, and once more after the owner's next write, which builds on it."""
        self.look()
        worker.does("write")
        self.look()
        worker.does("leave")

    def ask(self, query: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database of the effects, over a connection for this question."""
        with psycopg.connect(self.ledger, autocommit=True) as conn:
            return conn.execute(query, values).fetchall()

    def wait_for(self, what: str, query: LiteralString, *values: object) -> None:
        """Return when a query's one value is true.

        Raises:
            TimeoutError: it did not become true; nothing is concluded from how long it took.
        """
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self.ledger, autocommit=True) as conn:
            while conn.execute(query, values).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"waited in vain: {what}")
                conn.execute("SELECT pg_sleep(0.01)")

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


@contextmanager
def scene(run: Run, name: str, *, fenced: bool) -> Generator[Scene]:
    """Prepare the scene of a scenario, whose histories go into the run's folder."""
    prepare(run.places.postgres)
    job = f"{run.places.prefix}{name}"
    with ExitStack() as stack:
        history = stack.enter_context(run.history("scene"))
        truth = stack.enter_context(run.history("observer"))
        observer = stack.enter_context(closing(Observer(truth, [job])))
        observer.look_at(run.places.postgres)
        opened = Scene(run, job, fenced, history, observer, stack, run.places.postgres)
        yield opened
        opened.look()
        observer.marks()
