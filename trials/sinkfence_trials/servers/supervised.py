"""A throwaway server's process as its owner has it in hand; `supervisor.py` is the other half."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")

ROOM: Final = 200 * 1024 * 1024
"""Bytes that must be free on the disk for one server."""

PATIENCE: Final = 60.0
"""Seconds that a server's start, or its recovery, may take; usually it is 0.1 to 1."""

User = tuple[int, int]
"""A user id and a group id."""


class ServerError(Exception):
    """A server could not be had: the message says what to do, and ends with the server's last words."""


class Supervised:
    """One server's folder and process. Thread-safe."""

    def __init__(self, name: str, supervisor: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self.folder: Path = Path(self._answer()["folder"])
        """The server's private folder, and its working directory; removed at the end."""

    def start(
        self,
        argv: Sequence[object],
        *,
        user: User | None = None,
        polite: bool = False,
        litter: Sequence[str] = (),
    ) -> int:
        """Start a process in the folder, as another user if one is given, and return its process id.

        At the end it is killed, a `polite` one is sent SIGQUIT first. `litter` is what it leaves elsewhere.
        """
        words = [str(word) for word in argv]
        return int(self.ask(do="start", argv=words, user=user, polite=polite, litter=litter)["pid"])

    def wait(self, ready: Callable[[int | None], bool]) -> None:
        """Wait until the server is ready, given its exit code or None while it runs.

        Raises:
            ServerError: it ended without being ready, or took more than PATIENCE.
        """
        deadline = time.monotonic() + PATIENCE
        while not ready(code := self.ask(do="poll")["exit"]):
            if code is not None:
                raise self._error("stopped while starting")
            if time.monotonic() > deadline:
                raise self._error(f"was not ready within {PATIENCE:.0f} s")
            time.sleep(0.01)

    def ask(self, **request: object) -> dict[str, Any]:
        """Have the supervisor do something ("start", "poll", or "kill": SIGKILL), and return its answer.

        Raises:
            ServerError: it could not be done.
        """
        assert self._supervisor.stdin is not None
        with self._lock:
            with contextlib.suppress(BrokenPipeError):  # then the answer is missing, too
                self._supervisor.stdin.write(json.dumps(request).encode() + b"\n")
                self._supervisor.stdin.flush()
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._supervisor.stdout is not None
        answer = json.loads(self._supervisor.stdout.readline() or '{"error": "its supervisor has gone"}')
        if "error" in answer:
            raise ServerError(f"{self.name} cannot run: {answer['error']}; {advice(answer['error'])}")
        return dict(answer)

    def _error(self, what: str) -> ServerError:
        said = (self.folder / "log").read_text(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        return ServerError("\n    ".join([f"{self.name} {what}: {advice(said)}", *lines[-8:]]))


@contextlib.contextmanager
def supervised(name: str, base: Path) -> Generator[Supervised]:
    """Start a supervisor with a new folder in `base`; at the end nothing of either is left.

    Raises:
        ServerError: there is no room in `base`.
    """
    if (free := shutil.disk_usage(base).free) < ROOM:
        raise ServerError(
            f"{name} needs {ROOM >> 20} MB and {base} has {free >> 20} MB left: {advice('No space left')}"
        )
    # A session of its own: Ctrl-C in a terminal is for the owner, who may need the server while it cleans up.
    command = [sys.executable, "-I", "-S", str(SUPERVISOR), str(base), str(os.getpid())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as supervisor:
        assert supervisor.stdin is not None
        try:
            yield Supervised(name, supervisor)
        finally:
            # "stop" and not the pipe's end alone: a fork of this process would hold it open.
            with contextlib.suppress(BrokenPipeError):
                supervisor.stdin.write(b'{"do": "stop"}\n')
                supervisor.stdin.close()


def advice(said: str) -> str:
    """Return what to do about what a server said."""
    if "No space left" in said:
        return "free some space, or point TMPDIR to another folder"
    if "Address already in use" in said:
        return "its port is taken: stop what listens there, or choose another one"
    return "what it said tells why"
