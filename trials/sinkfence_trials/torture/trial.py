"""One run of workers, nemesis and observer, from its servers to its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import psycopg

from sinkfence_s3.probe import probe
from sinkfence_trials.checker import check
from sinkfence_trials.history import Event, now, read
from sinkfence_trials.servers.supervised import ServerError
from sinkfence_trials.torture.cast import Cast
from sinkfence_trials.torture.destinations import SINKS
from sinkfence_trials.torture.failover import Primary, restore_leases, with_standby
from sinkfence_trials.torture.observer import Observer, acknowledged
from sinkfence_trials.torture.outages import Outage, ServerNemesis, killed
from sinkfence_trials.torture.places import Places
from sinkfence_trials.torture.run import Run
from sinkfence_trials.torture.sabotage import SABOTAGES
from sinkfence_trials.torture.serving import Service
from sinkfence_trials.torture.sometimes import Sometimes, Tail
from sinkfence_trials.torture.tables import prepare
from sinkfence_trials.torture.verdict import About

JOBS: Final = 2

HEALING: Final = 60.0
"""Seconds within which each job has to have effects again; usually it is one or two."""

QUIET: Final = 30.0
"""Seconds that PostgreSQL may take to end the sessions of workers that were killed."""

LAST_LOOK: Final = 30.0
"""Seconds that a server may be down when the observer looks for the last time."""

TIMES_LONGER: Final = 4
"""How many times its seconds a run may take, while it lacks what has to happen sometimes."""

RESTORE: Final = "lease store restore"

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
            ServerError, ProcessFailed: a server could not be had; or what workers are forked from.
            NotEnforced: the bucket lets a stale owner write, whoever asks.
            ValueError: the sabotage is one of a server, and the server is not ours.
        """
        tail, sometimes = Tail(self.run.folder), Sometimes()
        with ExitStack() as stack:
            outages = self.outages(stack)
            self.prepare()
            places = self.run.places
            url = places.service
            if url is None:
                service = stack.enter_context(closing(Service(self.run.folder)))
                url = service.url
                if self.server_faults and not self.sabotage:
                    outages["service kill"] = killed(service)
            observer = stack.enter_context(closing(Observer(self.run.history("observer"), self.jobs)))
            observer.look_at(places.postgres)
            observer.look_at(places.bucket)
            observer.watch()
            floor = "clock" if RESTORE in outages else None
            cast = Cast.start(self.run, self.jobs, url, self.sabotage, floor)
            stack.callback(cast.end)
            self.not_run += cast.not_run
            servers = ServerNemesis(outages, f"{self.run.seed} servers", self.run.history("server nemesis"))
            stack.callback(servers.close)
            kinds = (*cast.kinds, *outages)
            about = self.about(kinds)
            replace(about, broken_off="it did not come to its end").write(self.run.folder)
            ended = partial(died, observer, cast, servers)
            self.watch(tail, sometimes, kinds, say, ended)
            cast.heal()
            servers.heal()
            if not self.sabotage and not ended():
                with self.run.history("nemesis") as diary:
                    diary.add("heal", "ok", "")
                self.await_progress(tail, ended)
            cast.end()
            if not servers.died_of:  # else one is down, and may stay so
                self.await_quiet()
                observer.finish(LAST_LOOK)
        if places.service:
            self.believe()
        replace(about, broken_off=ended()).write(self.run.folder)

    def outages(self, stack: ExitStack) -> dict[str, Outage]:
        """Return what is done to servers that are ours, by its kind; what is not ours is said to be not run.

        A database of ours gets a standby, and so another address.

        Raises:
            ValueError: the sabotage is one of a server, and the server is not ours.
        """
        places = self.run.places
        loses = bool(self.sabotage) and SABOTAGES[self.sabotage or ""].loses
        if loses and places.cluster is None:
            raise ValueError(f"--sabotage {self.sabotage} takes a PostgreSQL server of its own")
        if loses:
            primary = self.with_standby(stack, places, in_step=False)
            return {"PostgreSQL lossy failover": partial(primary.lose, self.jobs)}
        if self.sabotage or not self.server_faults:
            return {}
        found: dict[str, Outage] = {}
        if places.weed is None:
            self.not_run.append("S3 kill: it is not ours")
        else:
            found["S3 kill"] = killed(places.weed)
        if places.cluster is None:
            self.not_run += [
                f"{kind}: it is not ours" for kind in ("PostgreSQL kill", "PostgreSQL failover", RESTORE)
            ]
            return found
        try:
            primary = self.with_standby(stack, places, in_step=True)
        except ServerError as why:
            self.not_run.append(f"PostgreSQL failover: {why}")
            found["PostgreSQL kill"] = killed(places.cluster)
        else:
            found["PostgreSQL kill"] = killed(primary)
            found["PostgreSQL failover"] = primary.fail_over
        leases = self.run.places.postgres
        found[RESTORE] = partial(restore_leases, leases, self.jobs, self.run.history("restorer"))
        return found

    def with_standby(self, stack: ExitStack, places: Places, *, in_step: bool) -> Primary:
        """Give our database a standby, and the run its new address."""
        assert places.cluster is not None
        diary = self.run.history("primary")
        standby = with_standby(places.cluster, places.postgres, diary, in_step=in_step)
        primary = stack.enter_context(standby)
        self.run = replace(self.run, places=replace(places, postgres=primary.dsn))
        return primary

    def about(self, kinds: tuple[str, ...]) -> About:
        """What the run is to do."""
        run = self.run
        caught_by = SABOTAGES[self.sabotage].caught_by if self.sabotage else None
        return About(
            run.places.run,
            run.seed,
            kinds,
            tuple(self.not_run),
            self.sabotage,
            caught_by,
            left=run.places.left,
        )

    def prepare(self) -> None:
        """Make the tables; what the user's database has already is left as it is. Try the bucket out."""
        prepare(self.run.places.postgres)
        bucket = self.run.places.bucket
        with closing(bucket.client()) as client:
            probe(client, bucket.name, self.run.places.prefix)

    def watch(
        self, tail: Tail, sometimes: Sometimes, kinds: tuple[str, ...], say: Say, ended: Callable[[], str]
    ) -> None:
        """Let it go on, and tell of it: until a sabotage is caught; on a slow host, for a while longer."""
        begun = time.monotonic()
        while not ended() and (gone := time.monotonic() - begun) < self.seconds * TIMES_LONGER:
            time.sleep(1.0)
            sometimes.see(tail.new())
            say(time.monotonic() - begun, sometimes)
            if self.sabotage and self.is_caught():
                return
            if not self.sabotage and gone >= self.seconds and not sometimes.lacking(kinds):
                return

    def is_caught(self) -> bool:
        """Whether the invariant that is named for the sabotage is among those that are broken."""
        violations = check(read(self.run.histories()))
        caught_by = SABOTAGES[self.sabotage or ""].caught_by
        return any(violation.invariant == caught_by for violation in violations)

    def await_progress(self, tail: Tail, ended: Callable[[], str]) -> None:
        """Wait until each job has had an effect at each destination; the checker misses what has not come."""
        healed, end = now(), time.monotonic() + HEALING
        lacking = {(job, sink) for job in self.jobs for sink in SINKS}
        since: list[Event] = []
        while lacking and not ended() and time.monotonic() < end:
            time.sleep(0.2)
            since += tail.new()
            told = acknowledged(since) if self.run.places.service else []
            lacking -= {
                (event.job, event.value["sink"])
                for event in [*since, *told]
                if event.f == "effect" and event.t >= healed
            }

    def await_quiet(self) -> None:
        """Wait until PostgreSQL has noticed that the workers are gone: it may be committing for them."""
        query = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"
        )
        end, dsn = time.monotonic() + QUIET, self.run.places.postgres
        while time.monotonic() < end:
            # Whether it is down is for the observer to say, who looks next.
            with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
                if conn.execute(query, (self.run.places.run,)).fetchone() == (0,):
                    return
            time.sleep(0.05)

    def believe(self) -> None:
        """Take the answers of the user's service for its effects: nobody looks into it."""
        with self.run.history("answers") as history:
            for event in acknowledged(list(read(self.run.histories()))):
                history.write(event)


def died(observer: Observer, cast: Cast, servers: ServerNemesis) -> str:
    """Return who of those that work in the background has died, and of what; nothing while all live.

    What they did not do or see is missing from then on, and is nobody's fault.
    """
    all_ = {"its observer": observer.died_of, "the server nemesis": servers.died_of}
    all_ |= {f"the nemesis of {nemesis.name}": nemesis.died_of for nemesis in cast.nemeses}
    return "; ".join(f"{who} ended: {why!r}" for who, why in all_.items() if why is not None)
