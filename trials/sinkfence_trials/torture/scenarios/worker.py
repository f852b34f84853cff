"""A worker of the scenarios: it holds the job, writes, and writes down what it was told."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from sinkfence import Lease, LeaseLost, Leases, StaleToken, Token
from sinkfence.errors import LeaseHeld
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.history import History, Type
from sinkfence_trials.torture.asking import outcome, told
from sinkfence_trials.torture.caller import Caller
from sinkfence_trials.torture.destinations import Destination, Write, named
from sinkfence_trials.torture.documents import Documents
from sinkfence_trials.torture.ledger import Ledger
from sinkfence_trials.torture.places import Bucket
from sinkfence_trials.torture.scenarios.orders import Order

CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
ATTEMPTS = 20
"""How often a grant may be answered too late to be of use, on a machine that is busy with other things."""
TIMEOUT = 300.0
"""Seconds that it waits for an answer, which may be held."""


def destination(brief: Order) -> Destination:
    """Return where the brief says that it writes."""
    fenced: bool = brief["fenced"]
    if brief["to"] == "s3":
        return Documents(Bucket(**brief["bucket"]), TIMEOUT, fenced=fenced)
    if brief["to"] == "http":
        return Caller(brief["service"], TIMEOUT, fenced=fenced)
    return Ledger(named(brief["ledger"], brief["name"]), fenced=fenced)


class Worker:
    """What it has in hand: its lease, and the bare token, which asks no clock.

    It writes with the token, as one that has never looked at its lease again: the destinations have to hold
    without that courtesy.
    """

    def __init__(self, brief: Order) -> None:
        self.name: str = brief["name"]
        self.job: str = brief["job"]
        self.ttl: float = brief["ttl"]
        self.fenced: bool = brief["fenced"]
        self.store: str = brief["leases"]
        self.folder: Path = Path(brief["folder"])
        self.history: History = self.open_history(self.name)
        self.heartbeat: float = brief.get("heartbeat", self.ttl / 5)
        store = SqlStore(self.store, floor=brief.get("floor"))
        self.leases: Leases = Leases(store, ttl=self.ttl, heartbeat=self.heartbeat, owner=brief["label"])
        self.to: Destination = destination(brief)
        self.brief = brief
        self.token: Token
        self.lease: Lease
        self._holding: ExitStack

    def open_history(self, name: str) -> History:
        """Open the history of a process, this one or a child of it."""
        return History(self.folder / f"{name.replace(' ', '-')}.jsonl", name)

    def note(self, f: str, type: Type, generation: int | None = None, **value: Any) -> None:
        """Write down what happens now."""
        self.history.add(f, type, self.job, generation, **value)

    def leave_connections(self) -> None:
        """Leave those to the parent that a fork has copied, open as they are, and have others."""
        self._inherited, self.to = self.to, destination(self.brief)

    def store_now(self) -> float:
        """The store's clock, in seconds."""
        with psycopg.connect(self.store, autocommit=True) as conn:
            (now,) = conn.execute(CLOCK).fetchone() or (0.0,)
        return float(now)

    def hold(self, wait: float = 0.0, *, arm: bool = True) -> Order:
        """Hold the job with a heartbeat, its destination armed; with the checks off nothing is armed."""
        sinks = [self.to] if arm and self.fenced else []
        for _ in range(ATTEMPTS):
            self.note("acquire", "invoke")
            with ExitStack() as stack:
                try:
                    self.lease = stack.enter_context(self.leases.hold(self.job, wait=wait, arm=sinks))
                    self.token = self.lease.token
                except LeaseLost:
                    self.note("acquire", "info")
                    continue
                self._holding = stack.pop_all()
            until = self.lease.lease_until.timestamp()
            self.acquired(self.token, until)
            if sinks:
                self.note("arm", "ok", self.token.generation, owner=self.token.owner, sink=self.brief["to"])
            return {"generation": self.token.generation, "until": until}
        raise TimeoutError("each grant was answered later than its ttl")

    def acquired(self, token: Token, until: float) -> None:
        """Write down a grant; where nobody sees the store's clock, it was a ttl before its end."""
        seen = {} if self.brief["seen"] else {"now": until - self.ttl, "until": until, "ttl": self.ttl}
        self.note("acquire", "ok", token.generation, owner=token.owner, **seen)

    def write(self, step: str | None = None, size: int = 0) -> Order:
        """Make one effect, which builds on what is there, and tell what became of it."""
        token, this = self.token, secrets.token_hex(4)
        seen = self.to.read(token)
        write = Write(f"{token.owner}/{this}", step or this, seen, secrets.token_bytes(size))
        key = token.key(write.step)
        value = {"sink": self.brief["to"], "id": write.id, "base": seen.last}
        answer: Order = {"id": write.id}
        try:
            with told(self.history, "write", self.job, token, key, **value):
                return answer | {"by": self.to.write(token, write), "outcome": "ok"}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            answer |= {"outcome": outcome(error), "error": type(error).__name__, "said": str(error)}
            return answer | ({"mark": error.mark} if isinstance(error, StaleToken) else {})

    def try_hold(self) -> Order:
        """Ask for the job once, and tell how long it is said to be held for."""
        self.note("acquire", "invoke")
        try:
            lease = self.leases.acquire(self.job)
        except LeaseHeld as held:
            self.note("acquire", "fail")
            return {"error": "LeaseHeld", "retry_after": held.retry_after}
        self.token = lease.token
        self.acquired(self.token, lease.lease_until.timestamp())
        return {"generation": self.token.generation}

    def tell_time(self) -> Order:
        """What this process takes for the time of day."""
        return {"time": time.time()}

    def leave(self) -> Order:
        """Give the job back; LeaseLost is the answer where it was lost."""
        seen = {} if self.brief["seen"] else {"now": self.store_now()}
        self.note("release", "invoke", self.token.generation, owner=self.token.owner)
        try:
            self._holding.close()
        except LeaseLost:
            self.note("release", "fail", self.token.generation, owner=self.token.owner)
            raise
        self.note("release", "ok", self.token.generation, owner=self.token.owner, **seen)
        return {}
