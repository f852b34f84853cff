"""A store that has lost acknowledged commits: what destinations answer, and how the count gets above them.

A standby is promoted that has not heard of the last acquisitions; a dump of the night before is restored. The
destinations have seen the owners that the store has forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

import sinkfence_postgres
from sinkfence import GenerationConflict, LeaseLost, Leases, StaleToken, Token, aio
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.postgres import PostgresServer
from sinkfence_trials.servers.standby import pair
from sinkfence_trials.servers.supervised import ServerError

ONE_LOST = ["one lost", "one lost, in a loop", "still at work"]
THREE_LOST = ["three lost", "three lost, in a loop", "not armed", "by hand"]
BY_CLOCK = "counted by the clock"


@dataclass
class Promoted:
    """The new primary, and a destination that remembers what it never heard of."""

    dsn: str = ""
    lost: dict[str, Token] = field(default_factory=dict)


@pytest.fixture(scope="module")
def destination(postgres_server: PostgresServer) -> Iterator[sa.Engine]:
    """A fenced database on a server of its own."""
    dsn = postgres_server.create_database()
    with psycopg.connect(dsn) as conn:
        sinkfence_postgres.install(conn)
        conn.execute("create table entry (note text)")
    engine = sa.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()
    postgres_server.drop_database(dsn)


def programs_with(name: str) -> Path:
    """The folder of PostgreSQL's programs."""
    try:
        programs = binaries.find_postgres() / "bin"
    except ServerError as missing:
        pytest.skip(f"not run: {missing}")
    if not (programs / name).exists():
        pytest.skip(f"not run: there is no {name} in {programs}")
    return programs


@pytest.fixture(scope="module")
def promoted(destination: sa.Engine) -> Iterator[Promoted]:
    """Each job was had once; later acquisitions armed the destination, and are lost with the primary."""
    programs_with("pg_basebackup")
    after = Promoted()
    with pair() as servers:
        counting, by_clock = SqlStore(servers.dsn), SqlStore(servers.dsn, floor="clock")
        counting.create_schema()

        def turns(count: int, *jobs: str, arm: bool = True) -> None:
            for job in jobs:
                for _ in range(count):
                    leases = Leases(by_clock if job == BY_CLOCK else counting, ttl=300)
                    lease = leases.acquire(job)
                    if arm:
                        PostgresSink(destination).arm(lease)
                        after.lost[job] = lease.token
                    lease.release()

        def work() -> None:
            turns(1, *ONE_LOST, BY_CLOCK)
            turns(3, *THREE_LOST)

        turns(1, *ONE_LOST, *THREE_LOST, BY_CLOCK, arm=False)
        servers.follow()
        servers.lose(work)
        counting.close()
        by_clock.close()
        after.dsn = servers.dsn
        yield after


@pytest.fixture
def leases(promoted: Promoted) -> Iterator[Leases]:
    """A manager at the new primary."""
    with Leases(SqlStore(promoted.dsn), ttl=300) as leases:
        yield leases


def only_the_newest_writes(destination: sa.Engine, lease: object, lost: Token) -> None:
    """The owner that the store has forgotten is refused, the present one is not."""
    with destination.connect() as conn, transaction(conn, lease):
        conn.execute(sa.text("insert into entry values ('newest')"))
    with pytest.raises(StaleToken), destination.connect() as conn, transaction(conn, lost):
        conn.execute(sa.text("insert into entry values ('forgotten')"))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What calls for an operator."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(("job", "number"), [("one lost", 3), ("three lost", 5)])
def test_hold_raises_the_record(
    promoted: Promoted,
    leases: Leases,
    destination: sa.Engine,
    caplog: pytest.LogCaptureFixture,
    job: str,
    number: int,
) -> None:
    """C40: a destination is ahead, or knows the number under another owner: a higher one is issued."""
    with leases.hold(job, arm=[PostgresSink(destination)]) as lease:
        assert lease.generation == number == promoted.lost[job].generation + 1
        only_the_newest_writes(destination, lease, promoted.lost[job])
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize(("job", "number"), [("one lost, in a loop", 3), ("three lost, in a loop", 5)])
def test_hold_raises_the_record_in_a_loop(
    promoted: Promoted, destination: sa.Engine, job: str, number: int
) -> None:
    """C40: the asynchronous hold() does the same."""

    async def main() -> None:
        url = promoted.dsn.replace("postgresql:", "postgresql+psycopg:")
        async with aio.Leases(sql_aio.SqlStore(url), ttl=300) as leases:
            async with leases.hold(job, arm=[PostgresSink(destination)]) as lease:
                assert lease.generation == number
                await asyncio.to_thread(only_the_newest_writes, destination, lease, promoted.lost[job])

    asyncio.run(main())


def test_a_sink_that_was_not_armed(promoted: Promoted, leases: Leases, destination: sa.Engine) -> None:
    """The body of one turn is refused; the next turn is above the mark."""
    sink = PostgresSink(destination)
    with pytest.raises(StaleToken) as refused, leases.hold("not armed") as lease:
        sink.arm(lease)
    assert refused.value.mark == 4
    with leases.hold("not armed") as lease:
        sink.arm(lease)
        only_the_newest_writes(destination, lease, promoted.lost["not armed"])


def test_without_hold_an_operator_raises_it(
    promoted: Promoted, leases: Leases, destination: sa.Engine
) -> None:
    """acquire() repairs nothing by itself; after raise_above() with the mark of the refusal it goes on."""
    sink = PostgresSink(destination)
    lease = leases.acquire("by hand")
    with pytest.raises(StaleToken) as refused:
        sink.arm(lease)
    leases.raise_above("by hand", refused.value.mark)
    with pytest.raises(LeaseLost):
        lease.renew()
    again = leases.acquire("by hand")
    assert again.generation == 5
    sink.arm(again)
    only_the_newest_writes(destination, again, promoted.lost["by hand"])


def test_an_owner_that_the_store_has_forgotten(
    promoted: Promoted, leases: Leases, destination: sa.Engine
) -> None:
    """It renews and completes nothing at the new primary, also once its number was issued again."""
    forgotten, store = promoted.lost["still at work"], SqlStore(promoted.dsn)
    for change in (lambda: store.renew(forgotten, 60.0), lambda: store.complete(forgotten, None)):
        with pytest.raises(LeaseLost):
            change()
    again = leases.acquire("still at work")
    assert again.generation == forgotten.generation
    with pytest.raises(LeaseLost):
        store.complete(forgotten, None)
    with pytest.raises(GenerationConflict):
        PostgresSink(destination).arm(again)
    store.close()


def test_numbers_by_the_clock_go_on(
    promoted: Promoted, destination: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """S7: with floor="clock" nothing was issued twice, and there is nothing to repair."""
    with Leases(SqlStore(promoted.dsn, floor="clock"), ttl=300) as leases:
        with leases.hold(BY_CLOCK, arm=[PostgresSink(destination)]) as lease:
            assert lease.generation > promoted.lost[BY_CLOCK].generation
            only_the_newest_writes(destination, lease, promoted.lost[BY_CLOCK])
    assert not errors(caplog)


class Dump:
    """A dump of the lease tables by pg_dump, and the way back."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        programs = programs_with("pg_dump")
        dump = [programs / "pg_dump", "--clean", "--table=sinkfence*", "-d", url]
        result = subprocess.run(dump, check=False, capture_output=True, text=True)
        if "server version mismatch" in result.stderr:
            pytest.skip("not run: pg_dump is older than the server")
        assert result.returncode == 0, result.stderr
        self.text = result.stdout
        self.psql = [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url]

    def restore(self) -> None:
        subprocess.run(self.psql, input=self.text, capture_output=True, text=True, check=True)


class Copy:
    """A copy of an SQLite file, and the way back."""

    def __init__(self, url: str, folder: Path) -> None:
        self.file, self.copy = Path(url.removeprefix("sqlite:///")), folder / "of-the-night-before.db"
        shutil.copy(self.file, self.copy)

    def restore(self) -> None:
        for left in self.file.parent.glob(self.file.name + "-*"):
            left.unlink()
        shutil.copy(self.copy, self.file)


@pytest.mark.parametrize("floor", [None, "clock"])
def test_a_restored_store(url: str, tmp_path: Path, destination: sa.Engine, floor: str | None) -> None:
    """C40, C43: a backup is put back, and the next owner is above all that the destination has seen."""
    job, sink = f"restored, {floor}, {url[:8]}", PostgresSink(destination)
    with Leases(SqlStore(url, floor=floor), ttl=300) as leases:
        for _ in range(3):
            with leases.hold(job, arm=[sink]):
                pass
        backup = (Dump if url.startswith("postgresql") else Copy)(url, tmp_path)
        with leases.hold(job, arm=[sink]) as lease:
            last = lease.token
    backup.restore()
    with Leases(SqlStore(url, floor=floor), ttl=300) as leases:
        with leases.hold(job, arm=[sink]) as lease:
            assert lease.generation > last.generation
            only_the_newest_writes(destination, lease, last)
