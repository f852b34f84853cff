"""One PostgreSQL data folder and the process on it: made, started, crashed and started again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sinkfence.demo.servers import binaries
from sinkfence.demo.servers.supervised import Supervised

START: Final = 60.0
"""Seconds that a start, or a recovery, may take; usually 0.1."""

ALWAYS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # their paths may have 107 bytes, and TMPDIR may be longer
    # A killed server must not lose a commit that it has acknowledged, or every test of fencing would lie.
    "synchronous_commit": "on",
    "max_connections": "200",
    "shared_buffers": "32MB",
    # In the server's folder and not in /dev/shm, where a killed server would leave it.
    "dynamic_shared_memory_type": "mmap",
}


class Cluster:
    """A data folder in a supervised folder, and the server on it. Not running until it is started."""

    def __init__(
        self, process: Supervised, programs: Path, user: binaries.User | None, port: int, *, durable: bool
    ) -> None:
        self.programs = programs
        """The folder of the server's programs."""
        self.user = user
        """Whom the server runs as (uid, gid), or None where that is ourselves."""
        self.port = port
        self.data = process.folder / "data"
        self.pid = 0
        """The process id of the server (the postmaster): another one after each start."""
        self._process = process
        # What these two protect against is a crash of the machine, not of the server.
        safe = "on" if durable else "off"
        self._settings = ALWAYS | {"port": str(port), "fsync": safe, "full_page_writes": safe}

    def initialize(self, password: str) -> None:
        """Create the data folder (initdb), with a superuser `postgres` that has this password.

        Raises:
            ServerError: it could not be created.
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
        self._process.finish(START)
        secret.unlink()

    def start(self) -> None:
        """Start the server; after `kill` it comes back on the same folder and port, and recovers.

        Raises:
            ServerError: the port was taken, the disk is full, or whatever else the server says.
        """
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.data, *settings]
        pid = self._process.start(command, user=self.user, polite=True)
        self._process.until(lambda: self._ready(pid), START)
        self.pid = pid

    def _ready(self, pid: int) -> bool:
        # The first line is the server's pid and the eighth its state. After a crash the predecessor's file is there
        # until the new server has written its own.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def kill(self) -> None:
        """SIGKILL the server and its backends; return when they have gone."""
        self._process.kill()
