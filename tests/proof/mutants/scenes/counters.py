"""A store of leases, and what those who ask it were told."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from mutants.scenes import BASE, Effect, Ground, Scene
from mutants.scenes.databases import admin, one, with_settings
from sinkfence.errors import JobCompleted, LeaseHeld, LeaseLost
from sinkfence.stores.sql import SqlStore
from sinkfence.tokens import Token

SHORT = 0.05
LONG = 30.0
ENDED = "select pg_sleep_until(lease_until) from sinkfence_lease where job_id = %s"


class Counter(Scene):
    """A store, and what its callers were told; each is known by its name, whatever the library calls it."""

    def __init__(self, ground: Ground, conn: psycopg.Connection[Any], **options: Any) -> None:
        super().__init__(self._completed)
        self.dsn, self.conn, self.options = ground.dsn, conn, options
        self.callers: dict[str, str] = {}
        self.store = self.open()
        self.store.create_schema()
        conn.execute(
            "insert into sinkfence_lease (job_id, generation, lease_until, state) "
            "values ('mutant', %s, '-infinity', 'open')",
            (BASE,),
        )

    def open(self, **settings: str) -> SqlStore:
        dsn = with_settings(self.dsn, **settings) if settings else self.dsn
        return SqlStore(dsn.replace("postgresql:", "postgresql+psycopg:", 1), **self.options)

    def now(self) -> float:
        return float(one(self.conn, "select extract(epoch from clock_timestamp())::float8"))

    def _completed(self) -> list[Effect]:
        query = "select generation, owner, result from sinkfence_lease where job_id = %s and state = 'done'"
        return [
            Effect(generation, self.callers.get(owner, "nobody"), result["id"])
            for generation, owner, result in self.conn.execute(query, (self.job,))
        ]

    def granted(self, who: str, f: str, token: Token, until: float, ttl: float, since: float) -> None:
        """Write down a grant: by the store's clock it was made after `since`, and until now."""
        made = min(max(until - ttl, since), self.now())
        self.add(f, "ok", Token(self.job, token.generation, who), now=made, until=until, ttl=ttl)

    def acquire(
        self, who: str, ttl: float = SHORT, owner: str = "", since: float | None = None
    ) -> Token | None:
        """The token, or None where somebody else has the job."""
        since = self.now() if since is None else since
        owner = owner or f"{who}:{len(self.events)}"
        self.callers[owner] = who
        try:
            grant = self.store.acquire(self.job, owner, ttl)
        except (LeaseHeld, JobCompleted):
            return None
        except Exception as error:
            self.break_("L1", error)
            return None
        self.granted(who, "acquire", grant.token, grant.lease_until.timestamp(), ttl, since)
        return grant.token

    def renew(self, who: str, token: Token, ttl: float = SHORT) -> None:
        since = self.now()
        with self.refused():
            until = self.store.renew(token, ttl)
            self.granted(who, "renew", token, until.timestamp(), ttl, since)

    def complete(self, who: str, token: Token, attempt: str = "result") -> None:
        caller = Token(self.job, token.generation, who)
        with self.refused(), self.writing(caller, attempt=attempt):
            self.store.complete(token, json.dumps({"id": attempt}))
            self.add("complete", "ok", caller, now=self.now())

    def release(self, who: str, token: Token) -> None:
        with self.refused():
            self.store.release(token)
            self.add("release", "ok", Token(self.job, token.generation, who), now=self.now())

    def expired(self) -> None:
        """Wait, on the server, until the lease has run out by its clock."""
        self.conn.execute(ENDED, (self.job,))

    @contextmanager
    def refused(self) -> Generator[None]:
        """A caller that may be refused, and then is so by LeaseLost."""
        with suppress(LeaseLost):
            yield

    def tampered(self, statement: str) -> None:
        """Change the table past its triggers."""
        self.conn.execute("set session_replication_role = replica")
        self.conn.execute(statement)
        self.conn.execute("reset session_replication_role")


def in_a_store(**options: Any) -> Callable[[Callable[[Counter], None]], Callable[[Ground], Scene]]:
    """A scene that needs a store and nothing else."""

    def named(play: Callable[[Counter], None]) -> Callable[[Ground], Scene]:
        def scene(ground: Ground) -> Scene:
            with admin(ground.dsn) as conn:
                counter = Counter(ground, conn, **options)
                try:
                    play(counter)
                finally:
                    counter.store.close()
                return counter

        return scene

    return named
