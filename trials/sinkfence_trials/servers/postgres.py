"""A throwaway PostgreSQL server: real, private, and gone with the process that asked for it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.cluster import Cluster
from sinkfence_trials.servers.supervised import supervised


@dataclass(frozen=True)
class PostgresServer:
    """A running PostgreSQL server to make databases on."""

    dsn: str
    """The libpq URI of the database `postgres`, as superuser."""
    cluster: Cluster | None = field(default=None, repr=False)
    """Its process, to crash and restart it; None for a server that somebody else runs."""

    def create_database(self) -> str:
        """Create an empty database and return its libpq URI, as superuser."""
        name = f"sinkfence_{secrets.token_hex(6)}"
        # Copying its files is faster than logging each page, which is the default since PostgreSQL 15.
        self._execute(f"create database {name} template template0", since_15=" strategy file_copy")
        return urlsplit(self.dsn)._replace(path=f"/{name}").geturl()

    def drop_database(self, dsn: str) -> None:
        """Drop a database that `create_database` made, whoever is still connected to it."""
        self._execute(f"drop database {urlsplit(dsn).path[1:]} with (force)")

    def _execute(self, statement: str, since_15: str = "") -> None:
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            tail = since_15 if connection.info.server_version >= 150000 else ""
            connection.execute((statement + tail).encode())


@contextlib.contextmanager
def postgres(
    *, durable: bool = False, tree: Path | None = None, settings: Mapping[str, str] | None = None
) -> Generator[PostgresServer]:
    """Run a PostgreSQL server on 127.0.0.1; at the end, or when this process is killed, nothing of it stays.

    `durable` makes it safe against a crash of the machine too, as a benchmark must. `tree` is the
    installation to take, else that of `find_postgres`; `settings` is what the server is told besides.

    Raises:
        ServerError: it could not be found or started; the message says what to do.
    """
    tree = tree or binaries.find_postgres()
    user = binaries.unprivileged()
    with supervised("PostgreSQL", binaries.temporary(user)) as process:
        if user is not None:
            os.chown(process.folder, *user)
        if not binaries.runs([str(tree / "bin" / "postgres"), "--version"], user):
            tree = binaries.copy_tree(tree, process.folder / "programs")
        password = secrets.token_hex(16)
        [port] = binaries.free_ports(1)
        cluster = Cluster(process, tree / "bin", user, port, durable=durable, settings=settings)
        cluster.initialize(password)
        cluster.start()
        yield PostgresServer(f"postgresql://postgres:{password}@127.0.0.1:{cluster.port}/postgres", cluster)
