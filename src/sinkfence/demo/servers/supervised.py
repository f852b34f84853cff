"""A throwaway server's process as its owner sees it: started, killed, and gone with the owner."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")

POLL: Final = 0.01
"""Seconds between two looks at a server that is starting."""


class ServerError(Exception):
    """A server could not be had; the message says what to do, and ends with the server's last words."""


class Supervised:
    """One server's folder and process, in the hands of a supervisor (see `supervisor.py`). Thread-safe."""

    def __init__(self, name: str, supervisor: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self.folder = Path(self._answer()["folder"])
        """The server's private folder; removed at the end."""

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        user: tuple[int, int] | None = None,
        polite: bool = False,
        litter: Sequence[str] = (),
    ) -> int:
        """Start a process in the folder, as another user if one is given (uid, gid), and return its pid.

        At the end it is killed; a `polite` one is asked by SIGQUIT first. `litter` are files that it leaves elsewhere.
        """
        command = [str(arg) for arg in argv]
        answer = self._ask(do="start", argv=command, user=user, polite=polite, litter=litter)
        return int(answer["pid"])

    def kill(self) -> None:
        """SIGKILL the process and all that it has started; return when they have gone."""
        self._ask(do="kill")

    def exit_code(self) -> int | None:
        """Return the process's exit code, negative for a signal, or None while it runs."""
        return self._ask(do="poll")["exit"]

    def finish(self, timeout: float) -> None:
        """Wait until the process has ended well.

        Raises:
            ServerError: it failed, or took longer than `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (code := self.exit_code()) is None:
            self._not_later_than(deadline, timeout)
            time.sleep(POLL)
        if code != 0:
            raise self.error("failed")

    def until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until the server is ready.

        Raises:
            ServerError: it ended before it was, or took longer than `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if self.exit_code() is not None:
                raise self.error("stopped while starting")
            self._not_later_than(deadline, timeout)
            time.sleep(POLL)

    def _not_later_than(self, deadline: float, timeout: float) -> None:
        if time.monotonic() > deadline:
            raise self.error(f"was not ready within {timeout:.0f} s")

    def error(self, what: str) -> ServerError:
        """Return the error that says what happened, what to do, and what the server said last."""
        said = b""
        with contextlib.suppress(OSError):
            said = (self.folder / "log").read_bytes()[-4000:]
        last = "\n".join(
            f"    {line}" for line in said.decode(errors="replace").split("\n")[-6:] if line.strip()
        )
        return ServerError(
            f"{self.name} {what}: {advice(last, self.folder.parent)}" + (f"\n{last}" if last else "")
        )

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._supervisor.stdin is not None
        with self._lock:
            with contextlib.suppress(OSError):  # the answer will be missing, too
                self._supervisor.stdin.write(json.dumps(request).encode() + b"\n")
                self._supervisor.stdin.flush()
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._supervisor.stdout is not None
        line = self._supervisor.stdout.readline()
        if not line:
            raise ServerError(
                f"{self.name} has lost its supervisor, pid {self._supervisor.pid}: start it again"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServerError(f"{self.name} cannot be started: {answer['error']}. {advice(answer['error'])}")
        return answer


@contextlib.contextmanager
def supervised(name: str, base: Path) -> Iterator[Supervised]:
    """Start a supervisor with a new folder in `base`; at the end nothing of either is left.

    Raises:
        ServerError: no folder could be made there.
    """
    command = [sys.executable, "-I", "-S", str(SUPERVISOR), str(base), str(os.getpid())]
    # In a session of its own: Ctrl-C in a terminal is for the owner, who will still need the server while it cleans up.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as supervisor:
        try:
            yield Supervised(name, supervisor)
        finally:
            assert supervisor.stdin is not None
            with contextlib.suppress(OSError):  # an unsent request, if the supervisor has gone
                supervisor.stdin.close()
            supervisor.wait()


def advice(said: str) -> str:
    """Return what to do about a server's complaint."""
    if "No space left" in said or "Disk quota" in said:
        return "the disk is full: free some space, or point TMPDIR to a folder that has some (200 MB)"
    if "in use" in said:
        return "its port is taken: stop what listens there, or choose another one"
    return "see what it said"


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on, and whose neighbours 10000 above are free as well.

    Both are below the range that systems take for outgoing connections (32768 and up on Linux), so that a server can
    be killed and find its port still free when it comes back.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            port = 10000 + secrets.randbelow(12000)
            with contextlib.suppress(OSError):
                for number in (port, port + 10000):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", number))
                ports.append(port)
    return ports
