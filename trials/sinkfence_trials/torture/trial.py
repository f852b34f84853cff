"""One run of workers, nemesis and observer, from its servers to its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

from sinkfence.errors import NotEnforced
from sinkfence_s3.probe import probe
from sinkfence_trials.checker import Violation, check
from sinkfence_trials.history import now, read
from sinkfence_trials.torture.clocks import environment
from sinkfence_trials.torture.destinations import SINKS
from sinkfence_trials.torture.nemesis import KINDS, Nemesis, Server, ServerNemesis
from sinkfence_trials.torture.observer import LOOK_EVERY, Observer, acknowledged
from sinkfence_trials.torture.run import TTL, NotRun, Run
from sinkfence_trials.torture.sabotage import SABOTAGES
from sinkfence_trials.torture.serving import Service
from sinkfence_trials.torture.sometimes import Sometimes, Tail
from sinkfence_trials.torture.tables import prepare
from sinkfence_trials.torture.verdict import About
from sinkfence_trials.torture.victim import Victim

WORKERS: Final = 3
JOBS: Final = 2

HEALING: Final = 60.0
"""Seconds within which each job has to have effects again; usually it is one or two."""

QUIET: Final = 30.0
"""Seconds that PostgreSQL may take to end the sessions of workers that were killed."""

PATIENCE: Final = 4
"""How many times its seconds a run may take, while it lacks what has to happen sometimes."""

SABOTAGE_KINDS: Final = ("pause", "hold")

Say = Callable[[float, Sometimes], None]
"""Called once a second, with how many have gone by."""


@dataclass(slots=True)
class Trial:
    """What is done in one run."""

    run: Run
    seconds: float
    sabotage: str | None = None
    server_faults: bool = True
    not_run: list[str] = field(default_factory=list[str])

    @property
    def jobs(self) -> list[str]:
        """The run's jobs."""
        return [f"{self.run.places.prefix}job-{number}" for number in range(1, JOBS + 1)]

    def play(self, say: Say) -> None:
        """Torture for so many seconds, heal, wait for progress, look: then the folder can be judged.

        Raises:
            ServerError, ProcessFailed: a server could not be had; or a worker has ended by itself.
            NotEnforced: the bucket lets a stale owner write, whoever asks.
        """
        self.prepare()
        places = self.run.places
        tail, sometimes = Tail(self.run.folder), Sometimes()
        with ExitStack() as stack:
            url, servers = places.service, dict[str, Server]()
            if url is None:
                service = stack.enter_context(closing(Service(self.run.folder)))
                url, servers["service kill"] = service.url, service
            observer = stack.enter_context(closing(Observer(self.run.history("observer"), self.jobs)))
            observer.look_at(places.postgres)
            observer.look_at(places.bucket)
            observer.watch()
            kinds, nemeses = self.nemeses(url)
            stack.callback(end, nemeses)
            server, more = self.server_nemesis(servers)
            if server is not None:
                stack.callback(server.close)
            needed = (*kinds, *more)
            self.about(needed).write(self.run.folder)
            self.watch(tail, sometimes, needed, say)
            for nemesis in nemeses:
                nemesis.heal()
            if server is not None:
                server.heal()
            for nemesis in nemeses:
                nemesis.healed.wait()
            if not self.sabotage:
                with self.run.history("nemesis") as diary:
                    diary.add("heal", "ok", "")
                self.await_progress(tail, sometimes)
            end(nemeses)
            self.await_quiet()
            observer.stop()
            while observer.look():
                time.sleep(LOOK_EVERY)
            observer.marks()
        if places.service:
            self.believe()

    def about(self, kinds: tuple[str, ...]) -> About:
        """What the run is to do."""
        places, caught_by = self.run.places, None
        if self.sabotage:
            caught_by = SABOTAGES[self.sabotage].caught_by
        return About(
            places.run,
            self.run.seed,
            kinds,
            tuple(self.not_run),
            self.sabotage,
            caught_by,
            left=tuple(places.left),
        )

    def prepare(self) -> None:
        """Make the tables; what the user's database has already is left as it is. Try the bucket out."""
        prepare(self.run.places.postgres)
        bucket = self.run.places.bucket
        with closing(bucket.client()) as client:
            problem = probe(client, bucket.name, self.run.places.prefix).problem
        if problem is not None:
            raise NotEnforced(f"bucket {bucket.name!r} does not enforce conditional writes: {problem}")

    def nemeses(self, service: str) -> tuple[tuple[str, ...], list[Nemesis]]:
        """Start the workers, each with its nemesis; return the kinds of faults as well."""
        run, places = self.run, self.run.places
        postgres = address(places.postgres, 5432)
        upstreams = {
            "postgres": postgres,
            "store": postgres,
            "http": address(service),
            "s3": address(places.bucket.endpoint),
        }
        kinds: tuple[str, ...] = SABOTAGE_KINDS if self.sabotage else KINDS
        has_clocks = True
        try:
            run.nursery.warm(environment(run.folder / "clock-1"))
        except NotRun as why:
            self.not_run.append(f"clock jumps: {why}")
            kinds, has_clocks = tuple(kind for kind in kinds if kind != "clock jump"), False
            run.nursery.warm({})
        sinks: tuple[str, ...] = SINKS
        late: dict[str, Any] = {}
        saboteur = SABOTAGES[self.sabotage] if self.sabotage else None
        if saboteur is not None:
            sinks = saboteur.sinks_of_all
            late = {"networks": saboteur.networks, "moments": (saboteur.until,), "gaps": (0.1, 0.5)}
        started: list[Nemesis] = []
        for number in range(1, WORKERS + 1):
            name = f"worker {number}"
            brief = {
                "name": name,
                "history": str(run.folder / f"worker-{number}.jsonl"),
                "run": places.run,
                "sinks": sinks,
                "ttl": TTL,
                "jobs": self.jobs,
                "postgres": places.postgres,
                "bucket": asdict(places.bucket),
                "service": service,
                "foreign": bool(places.service),
                "upstreams": {sink: list(to) for sink, to in upstreams.items()},
                "sabotage": self.sabotage if number == 1 else None,
            }
            clock = run.folder / f"clock-{number}" if has_clocks else None
            nemesis = Nemesis(
                name,
                partial(Victim, name, brief, upstreams, places.postgres, clock=clock, nursery=run.nursery),
                kinds=kinds if saboteur is None or saboteur.is_late == (number == 1) else (),
                seed=f"{run.seed} {name}",
                ttl=TTL,
                **late,
                diary=run.history(f"nemesis {number}"),
            )
            started.append(nemesis)
        for nemesis in started:
            nemesis.ready.wait()
        return kinds, started

    def server_nemesis(self, servers: dict[str, Server]) -> tuple[ServerNemesis | None, tuple[str, ...]]:
        """Start the one that kills the servers that are ours; return its kinds of faults as well."""
        if self.sabotage or not self.server_faults:
            return None, ()
        ours = {"PostgreSQL kill": self.run.places.cluster, "S3 kill": self.run.places.weed}
        for kind, server in ours.items():
            if server is None:
                self.not_run.append(f"{kind}: it is not ours")
            else:
                servers = servers | {kind: server}
        if not servers:
            return None, ()
        diary = self.run.history("nemesis of servers")
        return ServerNemesis(servers, f"{self.run.seed} servers", diary), tuple(servers)

    def watch(self, tail: Tail, sometimes: Sometimes, kinds: tuple[str, ...], say: Say) -> None:
        """Let it go on, and tell of it: until a sabotage is caught; on a slow host, for a while longer."""
        begun = time.monotonic()
        while (gone := time.monotonic() - begun) < self.seconds * PATIENCE:
            time.sleep(1.0)
            sometimes.see(tail.new())
            say(time.monotonic() - begun, sometimes)
            if self.sabotage and self.is_caught(check(read(self.run.histories()))):
                return
            if not self.sabotage and gone >= self.seconds and not sometimes.lacking(kinds):
                return

    def await_progress(self, tail: Tail, sometimes: Sometimes) -> None:
        """Wait until each job has had an effect at each destination; the checker misses what has not come."""
        healed, end = now(), time.monotonic() + HEALING
        lacking = {(job, sink) for job in self.jobs for sink in SINKS}
        while lacking and time.monotonic() < end:
            time.sleep(0.2)
            sometimes.see(tail.new())
            history = list(read(self.run.histories()))
            if self.run.places.service:
                history += acknowledged(history)
            lacking -= {
                (event.job, event.value["sink"])
                for event in history
                if event.f == "effect" and event.t >= healed
            }

    def await_quiet(self) -> None:
        """Wait until PostgreSQL has noticed that the workers are gone: it may be committing for them."""
        query = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"
        )
        end = time.monotonic() + QUIET
        with psycopg.connect(self.run.places.postgres, autocommit=True) as conn:
            while time.monotonic() < end:
                if conn.execute(query, (self.run.places.run,)).fetchone() == (0,):
                    return
                time.sleep(0.05)

    def believe(self) -> None:
        """Take the answers of the user's service for its effects: nobody looks into it."""
        with self.run.history("answers") as history:
            for event in acknowledged(list(read(self.run.histories()))):
                history.write(event)

    def is_caught(self, violations: list[Violation]) -> bool:
        """Whether the invariant that is named for the sabotage is among those that are broken."""
        assert self.sabotage is not None
        return SABOTAGES[self.sabotage].caught_by in {violation.invariant for violation in violations}


def end(nemeses: list[Nemesis]) -> None:
    """Have all workers killed, and wait for it.

    Raises:
        ProcessFailed: one has ended by itself.
    """
    for nemesis in nemeses:
        nemesis.heal()
        nemesis.end()
    for nemesis in nemeses:
        nemesis.join()
    for nemesis in nemeses:
        if nemesis.failed is not None:
            raise nemesis.failed


def address(url: str, port: int | None = None) -> tuple[str, int]:
    """Return where a URL leads to.

    Raises:
        ValueError: nowhere that a network leads to.
    """
    parts = urlsplit(url)
    port = parts.port or port or {"https": 443, "http": 80}.get(parts.scheme)
    if not parts.hostname or not port:
        raise ValueError(f"{parts.scheme}://{parts.hostname}: a network has to lead there, to be disturbed")
    return parts.hostname, port
