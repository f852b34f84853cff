"""The run's PostgreSQL behind an address that stays, whichever of two servers takes writes.

They are on this host, so that `time.time()` here is the clock of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import psycopg

from sinkfence_trials.history import History
from sinkfence_trials.servers.cluster import Cluster
from sinkfence_trials.servers.standby import Pair, at_port, beside
from sinkfence_trials.torture.proxy import FaultProxy

LOST: Final = 3
"""How many acquisitions of one job are lost: the next number is then below one that somebody has seen."""

PATIENCE: Final = 20.0
"""Seconds that are waited for them."""


class Primary:
    """A pair of servers, and the network before them, which leads to the one that takes writes."""

    def __init__(self, servers: Pair, dsn: str, diary: History) -> None:
        self._servers, self._diary = servers, diary
        self._network = FaultProxy("127.0.0.1", servers.cluster.port)
        self.dsn: str = at_port(dsn, self._network.address[1])
        """Of the run's database, by way of the network."""

    def close(self) -> None:
        """End the network."""
        self._network.close()

    def kill(self) -> None:
        """SIGKILL whoever takes writes; return when it has gone."""
        self._servers.cluster.kill()

    def start(self) -> None:
        """Start it again, where it was."""
        self._servers.cluster.start()

    def fail_over(self) -> None:
        """Kill it, promote the standby that is in step with it, and make another standby."""
        self._servers.wait_until_in_step()
        self._diary.add("failover", "invoke", "", now=time.time())
        self._servers.fail_over()
        self._go_on(lossy=False)

    def lose(self, jobs: Sequence[str]) -> None:
        """As `fail_over`, to a standby that has not heard of the last acquisitions."""
        query = "SELECT job_id, generation FROM sinkfence_lease WHERE job_id = ANY(%s)"

        def work() -> None:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                before: dict[str, int] = dict(conn.execute(query, (list(jobs),)).fetchall())
                wait_for(
                    lambda: any(
                        generation >= before[job] + LOST
                        for job, generation in conn.execute(query, (list(jobs),))
                    )
                )
            self._diary.add("failover", "invoke", "", lossy=True, now=time.time())

        self._servers.lose(work)
        self._go_on(lossy=True)

    def _go_on(self, *, lossy: bool) -> None:
        self._network.lead_to("127.0.0.1", self._servers.cluster.port)
        self._diary.add("failover", "ok", "", lossy=lossy, now=time.time())
        self._servers.follow()


@contextmanager
def with_standby(cluster: Cluster, dsn: str, diary: History, *, in_step: bool) -> Generator[Primary]:
    """Give a server a standby; if they are `in_step`, it acknowledges nothing that the standby has not.

    Raises:
        ServerError: it cannot be had.
    """
    with beside(cluster, urlsplit(dsn)._replace(query="").geturl(), in_step=in_step) as servers:
        servers.follow()
        primary = Primary(servers, dsn, diary)
        try:
            yield primary
        finally:
            primary.close()


def restore_leases(dsn: str, jobs: Sequence[str], diary: History) -> bool:
    """Take a backup of the leases, wait until some job has another owner, and restore it.

    Return whether anything was lost.
    """
    passed = "SELECT count(*) > 0 FROM sinkfence_lease l JOIN backup b USING (job_id)"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE TEMP TABLE backup AS SELECT * FROM sinkfence_lease WHERE false")
        conn.execute("INSERT INTO backup SELECT * FROM sinkfence_lease WHERE job_id = ANY(%s)", (list(jobs),))
        newer = f"{passed} WHERE l.generation > b.generation".encode()
        if not wait_for(lambda: conn.execute(newer).fetchone() == (True,)):
            return False
        diary.add("failover", "invoke", "", lossy=True, now=time.time())
        with conn.transaction():
            # The table's triggers keep a count from going back, and tell the observer of what owners do.
            conn.execute("SET LOCAL session_replication_role = replica")
            conn.execute(
                "UPDATE sinkfence_lease l SET generation = b.generation, owner = b.owner,"
                " lease_until = b.lease_until, state = b.state, result = b.result"
                " FROM backup b WHERE l.job_id = b.job_id"
            )
        diary.add("failover", "ok", "", lossy=True, now=time.time())
    return True


def wait_for(condition: Callable[[], bool]) -> bool:
    """Wait until something holds, for `PATIENCE` seconds."""
    end = time.monotonic() + PATIENCE
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return held
