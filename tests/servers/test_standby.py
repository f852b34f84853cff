"""What a failover between two real servers loses: nothing where they are in step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sinkfence_trials.servers.standby import Pair, pair
from sinkfence_trials.servers.supervised import ServerError


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary, and a spare one beside it."""
    try:
        with pair(in_step=request.param) as opened:
            yield opened
    except ServerError as missing:
        pytest.skip(f"not run: {missing}")


def creators() -> set[int]:
    """Which processes have made shared memory that is still there."""
    return {int(line.split()[4]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def rows(dsn: str) -> set[int]:
    with psycopg.connect(dsn) as conn:
        return {number for (number,) in conn.execute("SELECT i FROM t")}


@pytest.mark.parametrize("servers", [True], indirect=True)
def test_in_step_nothing_acknowledged_is_lost_again_and_again(servers: Pair) -> None:
    """The primary is killed while commits go on: what was acknowledged is at the other one."""
    with psycopg.connect(servers.dsn) as conn:
        conn.execute("CREATE TABLE t (i int)")
    servers.follow()
    acknowledged: list[int] = []
    some = threading.Semaphore(0)

    def commit(dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while True:
                try:
                    conn.execute("INSERT INTO t VALUES (%s)", (len(acknowledged),))
                except psycopg.OperationalError:
                    return  # killed
                acknowledged.append(len(acknowledged))
                some.release()

    for _ in range(2):
        thread = threading.Thread(target=commit, args=(servers.dsn,))
        thread.start()
        for _ in range(50):
            assert some.acquire(timeout=30)
        servers.wait_until_in_step()
        killed = servers.cluster.pid
        servers.fail_over()
        thread.join()
        assert set(acknowledged) <= rows(servers.dsn)
        servers.follow()
        assert killed not in creators()


@pytest.mark.parametrize("servers", [False], indirect=True)
def test_what_the_standby_never_heard_of_is_lost(servers: Pair) -> None:
    """The process that sends is stopped first: what is committed after that is acknowledged, and gone."""
    with psycopg.connect(servers.dsn) as conn:
        conn.execute("CREATE TABLE t (i int)")
        conn.execute("INSERT INTO t VALUES (1)")
    servers.follow()

    def work() -> None:
        with psycopg.connect(servers.dsn) as conn:
            conn.execute("INSERT INTO t VALUES (2)")

    servers.lose(work)
    assert rows(servers.dsn) == {1}
