"""A primary with a standby that lags behind it, until the primary is killed and the standby promoted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.cluster import SETTINGS, Cluster
from sinkfence_trials.servers.postgres import PostgresServer, postgres
from sinkfence_trials.servers.supervised import Supervised, supervised


class Pair:
    """Two servers; `dsn` is of the one that takes writes."""

    def __init__(self, primary: PostgresServer, standby: Supervised) -> None:
        assert primary.cluster
        self.dsn: str = primary.dsn
        self.cluster: Cluster = primary.cluster
        self._standby = standby
        [self._port] = binaries.free_ports(1)
        at = urlsplit(self.dsn)
        login = at.netloc.rpartition("@")[0]
        self._standby_dsn = at._replace(netloc=f"{login}@127.0.0.1:{self._port}").geturl()

    def follow(self) -> None:
        """Make the standby: a copy of the primary that streams from it."""
        user, programs, data = self.cluster.user, self.cluster.programs, self._standby.folder / "data"
        copy = [programs / "pg_basebackup", "-d", self.dsn, "-D", data, "-R", "-c", "fast", "--no-sync"]
        self._standby.start(copy, user=user)
        self._standby.wait(lambda code: code == 0)
        settings = SETTINGS | {"port": str(self._port), "fsync": "off"}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._standby.start([programs / "postgres", "-D", data, *words], user=user, polite=True)
        self._standby.wait(self._answers)

    def _answers(self, code: int | None) -> bool:
        try:
            with psycopg.connect(self._standby_dsn):
                return code is None
        except psycopg.OperationalError:
            return False

    def lose(self, work: Callable[[], None]) -> None:
        """Do work whose commits the primary acknowledges and the standby never hears of; then fail over.

        Killing the primary alone would lose nothing: what was committed is sent on before. So it is the
        process that sends which is stopped first.
        """
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            seen = "select pid from pg_stat_replication where replay_lsn >= pg_current_wal_lsn()"
            while not (sender := conn.execute(seen).fetchone()):
                conn.execute("select pg_sleep(0.02)")
            os.kill(sender[0], signal.SIGSTOP)
            while Path(f"/proc/{sender[0]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                conn.execute("select pg_sleep(0.02)")
        work()
        self.cluster.kill()
        self.dsn = self._standby_dsn
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            assert conn.execute("select pg_promote()").fetchone() == (True,)


@contextmanager
def pair() -> Generator[Pair]:
    """Run a primary; both servers are gone at the end."""
    with postgres() as primary:
        assert primary.cluster
        user = primary.cluster.user
        with supervised("the standby", binaries.temporary(user)) as standby:
            if user is not None:
                os.chown(standby.folder, *user)
            yield Pair(primary, standby)
