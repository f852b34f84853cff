"""How the command line is started, and what comes of that."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

COMMAND = [sys.executable, "-c", "from sinkfence.cli import main; main()"]
AT_TERMINAL = f"""import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is one
{COMMAND[-1]}"""
PLAIN = {
    name: value
    for name, value in os.environ.items()
    if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"} and not name.startswith(("SINKFENCE_", "SUDO_", "PG"))
}


class Ran(NamedTuple):
    """What has become of one command."""

    code: int
    out: str
    err: str


Sinkfence = Callable[..., Ran]


class Screen:
    """A command at a terminal of its own, and what stands there."""

    def __init__(self, running: subprocess.Popen[bytes], keys: int) -> None:
        self.running = running
        self.text = b""
        self._keys = keys

    def wait_for(self, end: bytes) -> None:
        """Read until that stands at the end."""
        while not self.text.endswith(end):
            self.text += os.read(self._keys, 4096)

    def type(self, keys: bytes) -> None:
        """Type something."""
        os.write(self._keys, keys)

    def close(self) -> int:
        """Read what is left, and return the exit code."""
        try:
            while part := os.read(self._keys, 4096):
                self.text += part
        except OSError:  # EIO: the last one has closed the terminal
            pass
        return self.running.wait(30)


@contextmanager
def terminal(*arguments: str) -> Iterator[Screen]:
    """Run the command line at a terminal."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-c", AT_TERMINAL, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**PLAIN, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(running, ours)
    finally:
        os.close(ours)
        running.kill()
        running.wait()
