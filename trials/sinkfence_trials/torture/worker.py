"""A worker of a run: a process that takes jobs and works on them as if it owned them until it is told no.

It writes with the bare token, which asks no clock: a worker that was stopped goes on as if nothing had
happened, and it is for the destinations to refuse it.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import urllib3.util.connection
from botocore.exceptions import BotoCoreError, ClientError

from sinkfence import JobCompleted, Leases, StaleToken
from sinkfence.leases.lease import Lease
from sinkfence.tokens import Token
from sinkfence_trials.demo import child
from sinkfence_trials.history import History
from sinkfence_trials.torture import sabotage
from sinkfence_trials.torture.asking import NOT_DONE, outcome, told
from sinkfence_trials.torture.caller import Caller, ForeignCaller
from sinkfence_trials.torture.destinations import Destination, Seen, Write, detoured
from sinkfence_trials.torture.documents import Documents
from sinkfence_trials.torture.ledger import SETTINGS, Ledger
from sinkfence_trials.torture.places import Bucket

ATTEMPTS: Final = 3
"""How often a step is sent whose outcome stays unknown."""

LOST: Final = (*NOT_DONE, BotoCoreError, ClientError, OSError)
"""What ends a tenure. requests' errors are OSErrors."""


class Worker:
    """What goes on in the process."""

    def __init__(self, brief: dict[str, Any], history: History) -> None:
        detours = {name: tuple(address) for name, address in brief["detours"].items()}
        upstreams = {name: tuple(address) for name, address in brief["upstreams"].items()}
        detour_connections({upstreams[name]: detours[name] for name in ("s3", "http")})
        self.ttl: float = brief["ttl"]
        self.jobs: list[str] = brief["jobs"]
        self.history = history
        self.conduct: sabotage.Conduct = sabotage.SABOTAGES.get(brief["sabotage"], sabotage.Conduct)()
        store = self.conduct.store(
            detoured(brief["postgres"], detours["store"], brief["run"]), floor=brief["floor"]
        )
        self.leases: Leases = Leases(store, ttl=self.ttl, owner=brief["name"])
        bucket = Bucket(**brief["bucket"])
        service = (ForeignCaller if brief["foreign"] else Caller)(brief["service"])
        sinks: dict[str, Destination] = {
            "postgres": Ledger(detoured(brief["postgres"], detours["postgres"], brief["run"]), SETTINGS),
            "s3": Documents(bucket),
            "http": service,
        }
        self.sinks: dict[str, Destination] = self.conduct.sinks(
            {name: sinks[name] for name in brief["sinks"]}
        )
        self.random: random.Random = random.Random()  # noqa: S311 - dice, and no secret
        self.written: int = 0

    def work(self) -> NoReturn:
        """Take one job after the other, for ever."""
        while True:
            job = self.random.choice(self.jobs)
            got = self.acquire(job)
            if got is None:
                time.sleep(self.random.uniform(0.05, 0.2))
                continue
            with suppress(*LOST):  # it is in the history
                self.tenure(*got)

    def acquire(self, job: str) -> tuple[Lease, Token] | None:
        """Ask for a job; the token is taken once, and kept whatever the lease learns."""
        self.history.add("acquire", "invoke", job)
        try:
            lease = self.leases.acquire(job)
            token = lease.token
        except JobCompleted as done:
            self.history.add("acquire", "fail", job, error=type(done).__name__)
            with self.told_of("reopen", job):
                self.leases.reopen(job)
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it is written down
            self.history.add("acquire", outcome(error), job, error=type(error).__name__)
            return None
        self.history.add("acquire", "ok", job, token.generation, owner=token.owner)
        return lease, token

    def tenure(self, lease: Lease, token: Token) -> None:
        """Arm, then write, renew now and then, and end it in one way or another."""
        token = self.conduct.token(token)
        self.arm(token)
        for _ in range(self.random.randint(4, 10)):
            try:
                self.step(token)
            except StaleToken:
                self.tell("renew", token, lease.renew)  # to hear from the store as well
                raise
            time.sleep(self.random.uniform(0.0, 0.05))
            if self.random.random() < 0.3:
                self.tell("renew", token, lease.renew)
        end = self.random.random()
        if end < 0.2:
            self.tell("complete", token, lease.complete)
        elif end < 0.8:
            self.tell("release", token, lease.release)
        # else it forgets to, and the lease runs out

    def arm(self, token: Token) -> None:
        """Arm all destinations before any is read."""
        for name, sink in self.sinks.items():
            if self.conduct.arms(name):
                with self.told_of("arm", token.job_id, token, sink=name):
                    sink.arm(token)

    def step(self, token: Token) -> None:
        """Read one destination, and make the next step there, again until it is known what became of it."""
        name = self.random.choice(list(self.sinks))
        sink = self.sinks[name]
        with self.told_of("read", token.job_id, token, sink=name):
            seen = sink.read(token)
        self.conduct.ponder()
        self.written += 1
        write = Write(f"write {self.written} of {token.owner}", self.name_of(token, sink, seen), seen)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.write(token, name, sink, write)
                return
            except Exception as error:
                if attempt == ATTEMPTS or outcome(error) != "info":
                    raise

    def name_of(self, token: Token, sink: Destination, seen: Seen) -> str:
        """Name the next step: for all owners the same, where they can see how far it went."""
        if isinstance(sink, ForeignCaller):
            return f"step {token.generation}.{self.written}"
        return self.conduct.name(f"step {seen.count + 1}")

    def write(self, token: Token, name: str, sink: Destination, write: Write) -> None:
        """Make one attempt."""
        base = {} if isinstance(sink, ForeignCaller) else {"base": write.base.last}
        key = token.key(write.step)
        with self.told_of("write", token.job_id, token, key, sink=name, id=write.id, **base):
            sink.write(token, write)

    def tell(self, f: str, token: Token, call: Any) -> None:
        """Ask the store, and write down what it says."""
        with self.told_of(f, token.job_id, token):
            call()

    def told_of(
        self, f: str, job: str, token: Token | None = None, key: str | None = None, **value: Any
    ) -> AbstractContextManager[None]:
        """Write down that something is asked, and what came of it."""
        return told(self.history, f, job, token, key, **value)


def detour_connections(detours: dict[Any, Any]) -> None:
    """Have the HTTP clients of this process connect by way of the proxies, and believe what they like."""
    direct = urllib3.util.connection.create_connection

    def connect(address: tuple[str, int], *args: Any, **kwargs: Any) -> Any:
        return direct(detours.get(address, address), *args, **kwargs)

    urllib3.util.connection.create_connection = connect


def main() -> None:
    """Work until killed."""
    logging.disable()  # the history tells what the log would
    brief = child.enter()
    with History(Path(brief["history"]), brief["name"]) as history:
        Worker(brief, history).work()
