"""The service of a run as its process: started, killed, started again."""

from __future__ import annotations

from pathlib import Path

from sinkfence_trials.demo.process import Process
from sinkfence_trials.servers.binaries import free_ports


class Service:
    """The service of a run: a process of its own, on a port that stays its own."""

    def __init__(self, folder: Path, *, fenced: bool = True) -> None:
        self._folder, self._fenced, [self._port] = folder, fenced, free_ports(1)
        self.url: str = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it; return when it listens."""
        self._process = Process("the service", "sinkfence_trials.torture.service").__enter__()
        self._process.begin({"folder": str(self._folder), "port": self._port, "fenced": self._fenced})
        self._process.hear("listens")

    def answer(self) -> int:
        """Wait for its next answer to a write, and return the status."""
        return int(self._process.hear("answered")["status"])

    def kill(self) -> None:
        """SIGKILL it."""
        self._process.__exit__()

    close = kill
