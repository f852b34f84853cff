"""The service of the races under each server, nginx before it, and the database where they write."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sinkfence_postgres import install

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
WAITING = (
    "select pid, application_name from pg_locks join pg_stat_activity using (pid), pg_sleep(0.005)"
    " where datname = current_database()"
    " and locktype = 'advisory' and classid = 1 and objid = %s and not granted"
)


@dataclass
class Place:
    """The database that every service of this module writes into, and one account in it."""

    db: psycopg.Connection[Any]
    account: int

    @property
    def dsn(self) -> str:
        return make_conninfo(self.db.info.dsn, password=self.db.info.password)

    def rows(self) -> list[int]:
        """The generations that have written, in the order in which they did."""
        found = self.db.execute(
            "select generation from payment where account = %s order by id", [self.account]
        )
        return [generation for (generation,) in found]

    @contextlib.contextmanager
    def stalling(self) -> Iterator[Callable[[], None]]:
        """Make requests with `stall` wait in mid-statement, until what this gives is called."""
        with psycopg.connect(self.dsn, autocommit=True) as blocker:
            blocker.execute("select pg_advisory_lock(1, %s)", [self.account])
            yield lambda: blocker.execute("select pg_advisory_unlock(1, %s)", [self.account])

    def stalled(self, late: Future[Any] | None = None) -> tuple[int, int]:
        """Wait until a request stalls; return the pid of its session, and that of its worker."""
        while not (found := self.db.execute(WAITING, [self.account]).fetchone()):
            assert late is None or not late.done(), late.result()
        return found[0], int(found[1].split(" ")[1])

    def session_has_ended(self, pid: int) -> None:
        """Wait until a session is there no more, or has nothing left to do."""
        busy = "select 1 from pg_stat_activity, pg_sleep(0.005) where pid = %s and state <> 'idle'"
        while self.db.execute(busy, [pid]).fetchone():
            pass


@pytest.fixture(scope="session")
def race_database(postgres_server) -> Iterator[psycopg.Connection[Any]]:
    dsn = postgres_server.create_database()
    with psycopg.connect(dsn, autocommit=True) as db:
        install(db)
        db.execute("create table payment (id serial, place text, account int, generation bigint)")
        yield db
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="session")
def start_race(race_database, start_service, tmp_path_factory):
    """Start the service by the name of its server, once each."""
    running: dict[str, Any] = {}
    dsn = make_conninfo(race_database.info.dsn, password=race_database.info.password)
    folder = str(tmp_path_factory.mktemp("gates"))

    def start(server: str) -> Any:
        if server in running:
            return running[server]
        if server == "nginx":
            if NGINX is None:
                pytest.skip("not run: no nginx (Debian's nginx-light)")
            passing = f"location / {{ proxy_pass {start('uvicorn-2').url}; }}"
            settings = {"nginx": NGINX, "folder": str(tmp_path_factory.mktemp("nginx")), "server": passing}
            running[server] = start_service("nginx_service.py", json.dumps(settings), name=server)
        else:
            settings = {"dsn": dsn, "folder": f"{folder}/{server}"}
            running[server] = start_service("race_service.py", json.dumps(settings), name=server)
        return running[server]

    yield start
    for service in running.values():
        service.process.kill()
        service.process.wait()
