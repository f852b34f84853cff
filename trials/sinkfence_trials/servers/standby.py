"""A primary with a standby that takes its place when it is killed, in step with it or behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.cluster import SETTINGS, Cluster
from sinkfence_trials.servers.postgres import postgres
from sinkfence_trials.servers.supervised import PATIENCE, ServerError, supervised

IN_STEP: Final = """
    SELECT count(*) = 1 FROM pg_stat_replication
    WHERE application_name = %s AND flush_lsn >= %s AND sync_state = ANY(%s)"""


class Pair:
    """Two servers; `dsn` and `cluster` are of the one that takes writes, `spare` is the other.

    With `in_step` a standby is synchronous: once `follow` has returned, no commit is acknowledged that the
    standby has not.
    """

    def __init__(self, cluster: Cluster, dsn: str, spare: Cluster, *, in_step: bool) -> None:
        self.cluster, self.dsn, self.spare, self._in_step = cluster, dsn, spare, in_step

    def follow(self) -> None:
        """Make the spare one a standby: a copy of the primary that streams from it."""
        self.spare.copy(self.dsn)
        self.spare.start()
        if self._in_step:
            self._have_commits_wait()
        self.wait_until_in_step()

    def _have_commits_wait(self) -> None:
        # Not before there is a standby, for they would wait all the while. The copy has not got the setting,
        # so that the same holds once it is promoted.
        name = SETTINGS["cluster_name"]
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = {name}".encode())
            conn.execute("SELECT pg_reload_conf()")
        known = False
        while not known:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                row = conn.execute("SHOW synchronous_standby_names").fetchone()
                if known := row == (name,):
                    # It is the checkpointer that tells all sessions, and a new session has heard of it no
                    # sooner than the checkpointer was told: before it makes a checkpoint it obeys.
                    conn.execute("CHECKPOINT")

    def wait_until_in_step(self) -> None:
        """Return when the standby has all that was committed when this was called.

        Raises:
            ServerError: it has not got it.
        """
        states = ["sync"] if self._in_step else ["sync", "async"]
        deadline = time.monotonic() + PATIENCE
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            [position] = conn.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or [None]
            values = (SETTINGS["cluster_name"], position, states)
            while conn.execute(IN_STEP, values).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise ServerError(f"the standby was not in step within {PATIENCE:.0f} s")
                time.sleep(0.02)

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby. What it did not have is lost."""
        self.cluster.kill()
        self.cluster, self.spare = self.spare, self.cluster
        self.dsn = at_port(self.dsn, self.cluster.port)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            assert conn.execute("SELECT pg_promote()").fetchone() == (True,)

    def lose(self, work: Callable[[], None]) -> None:
        """Do work whose commits the primary acknowledges and the standby never hears of; then fail over.

        Killing the primary alone would lose next to nothing: what was committed is sent on at once. So it is
        the process that sends which is stopped first.
        """
        self.wait_until_in_step()
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            query = "SELECT pid FROM pg_stat_replication WHERE application_name = %s"
            [sender] = conn.execute(query, (SETTINGS["cluster_name"],)).fetchone() or [0]
        os.kill(sender, signal.SIGSTOP)
        while Path(f"/proc/{sender}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.02)
        work()
        self.fail_over()


def at_port(dsn: str, port: int) -> str:
    """Return the URI of the same database on another port of 127.0.0.1."""
    parts = urlsplit(dsn)
    login = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()


@contextmanager
def beside(primary: Cluster, dsn: str, *, in_step: bool = False) -> Generator[Pair]:
    """Give a server that runs, and takes its writes at `dsn`, another one, which is gone at the end.

    Raises:
        ServerError: this PostgreSQL comes without pg_basebackup.
    """
    if not (primary.programs / "pg_basebackup").exists():
        raise ServerError("this PostgreSQL comes without pg_basebackup")
    with supervised("the standby", binaries.temporary(primary.user)) as process:
        if primary.user is not None:
            os.chown(process.folder, *primary.user)
        [port] = binaries.free_ports(1)
        spare = Cluster(process, primary.programs, primary.user, port, durable=False)
        yield Pair(primary, dsn, spare, in_step=in_step)


@contextmanager
def pair(*, in_step: bool = False) -> Generator[Pair]:
    """Run a primary that has a spare one beside it; both are gone at the end."""
    with postgres() as primary:
        assert primary.cluster
        with beside(primary.cluster, primary.dsn, in_step=in_step) as servers:
            yield servers
