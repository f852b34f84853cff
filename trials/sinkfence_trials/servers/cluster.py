"""One PostgreSQL data folder and the process on it: made or copied, started, crashed, started again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sinkfence_trials.servers.supervised import Supervised, User
from sinkfence_trials.servers.supervisor import release_shared_memory

SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # their paths may have 107 bytes, and TMPDIR may be longer
    # Always: a killed server that loses an acknowledged commit would make every test of fencing lie.
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # In the data folder and not in /dev/shm, where a killed server would leave it.
    "dynamic_shared_memory_type": "mmap",
    # A standby names itself by the first, and is not to be left behind by a primary that is killed.
    "cluster_name": "sinkfence",
    "wal_retrieve_retry_interval": "100ms",
    "wal_keep_size": "64MB",
}


class Cluster:
    """A data folder and its server, which runs from `start` to `kill`."""

    def __init__(
        self,
        process: Supervised,
        programs: Path,
        user: User | None,
        port: int,
        *,
        durable: bool,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.programs = programs
        """The folder of PostgreSQL's programs."""
        self.user = user
        """Whom they run as, where it isn't ourselves."""
        self.port = port
        self.data: Path = process.folder / "data"
        self.pid: int = 0
        """The server's process id (the postmaster's); another one after each start."""
        self._process = process
        # These two protect against a crash of the machine, not of the server.
        safe = "on" if durable else "off"
        own = {"port": str(port), "fsync": safe, "full_page_writes": safe}
        self._settings = SETTINGS | own | dict(settings or {})

    def initialize(self, password: str) -> None:
        """Make the data folder (initdb), with a superuser `postgres` of this password.

        Raises:
            ServerError: it could not be made.
        """
        secret = self._process.folder / "password"
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
        if self.user is not None:
            os.chown(secret, *self.user)
        options = [
            "--username=postgres",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        command = [self.programs / "initdb", "-D", self.data, f"--pwfile={secret}", *options]
        self._process.start(command, user=self.user)
        self._process.wait(lambda code: code == 0)
        secret.unlink()

    def copy(self, primary: str) -> None:
        """Make the data folder a copy of a running server's, whose standby it will be; what it was is lost.

        Raises:
            ServerError: it could not be copied.
        """
        release_shared_memory(self.data.parent)  # only the folder knows of what a killed server has left
        shutil.rmtree(self.data, ignore_errors=True)
        copy = [self.programs / "pg_basebackup", "-d", primary, "-D", self.data, "-R", "-c", "fast"]
        self._process.start([*copy, "--no-sync"], user=self.user)
        self._process.wait(lambda code: code == 0)

    def start(self) -> None:
        """Start the server; after `kill` it comes back on the same folder and port, and recovers.

        Raises:
            ServerError: the port is taken, the disk is full, or whatever else the server says.
        """
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.data, *settings]
        self.pid = self._process.start(command, user=self.user, polite=True)
        self._process.wait(self._ready)

    def _ready(self, code: int | None) -> bool:
        # The first line is the server's pid, the eighth its state. After a crash the file of the server that
        # was killed stays until the new one has written its own.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return code is None and lines[:1] == [str(self.pid)] and lines[7:8] == ["ready   "]

    def kill(self) -> None:
        """SIGKILL the server and its backends; return when they have gone."""
        self._process.ask(do="kill")
