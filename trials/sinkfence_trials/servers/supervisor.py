"""The process between a throwaway server and its owner: when the owner is gone, so is the server.

A script of the standard library alone. It makes the server's private folder and obeys its standard input, one
line of JSON after the other, each answered by one line. That is a pipe to which nobody but the owner writes:
its end means that the owner has closed it or was killed, by whatever signal. No atexit function, signal
handler or pid file could promise as much.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRACE = 1.0
"""Seconds that a polite server is given to stop by itself."""


def main(base: str, owner: int) -> None:
    """Make a folder in `base`, serve the process `owner`, and leave nothing behind."""
    with contextlib.suppress(AttributeError, OSError):
        # PR_SET_CHILD_SUBREAPER (prctl(2), Linux): the orphans of a killed server become our own children.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        folder = Path(tempfile.mkdtemp(prefix="sinkfence-", dir=base))
    except OSError as error:
        answer(error=str(error))
        return
    server: subprocess.Popen[bytes] | None = None
    asked: dict[str, Any] = {"polite": False, "litter": []}
    try:
        answer(folder=str(folder))
        for request in requests(owner):
            if request["do"] == "start":
                asked = request
                try:
                    server = start(folder, request)
                    answer(pid=server.pid)
                except OSError as error:
                    answer(error=str(error))
            elif request["do"] == "kill":
                kill()
                answer()
            else:
                answer(exit=server.poll() if server else None)
    finally:
        if server and asked["polite"] and server.poll() is None:
            # PostgreSQL's immediate shutdown: it takes its shared memory along.
            server.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE)
        kill()
        release_shared_memory(folder)
        for path in asked["litter"]:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def answer(**fields: object) -> None:
    """Write one line to the owner; that it has gone is for `requests` to notice."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def requests(owner: int) -> Iterator[dict[str, Any]]:
    """Yield what the owner wants, until it says "stop" or has gone."""
    pending = b""
    while True:
        while b"\n" not in pending:
            # A fork of the owner holds the other end of the pipe too, and may outlive it (stopped, say): so
            # the owner's death is also seen by the change of our parent.
            while not select.select([0], [], [], 0.25)[0]:
                if os.getppid() != owner:
                    return
            chunk = os.read(0, 65536)
            if not chunk:
                return
            pending += chunk
        line, _, pending = pending.partition(b"\n")
        request = json.loads(line)
        if request["do"] == "stop":
            return
        yield request


def start(folder: Path, request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the server in its folder, its words in `log`."""
    user: dict[str, Any] = {}
    if request["user"] is not None:
        uid, gid = request["user"]
        user = {"user": uid, "group": gid, "extra_groups": []}
    # Nothing of the owner's environment: LC_*, PG* and *_proxy change what a server does.
    environment = {"PATH": os.defpath, "LC_ALL": "C", "HOME": str(folder), "TMPDIR": str(folder)}
    argv: list[str] = request["argv"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen[bytes](
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment, **user
        )


def kill() -> None:
    """SIGKILL whatever descends from this process, and wait until it has gone.

    Each round kills the children; those that they leave are adopted, and killed by the next round.
    """
    while pids := children(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children(parent: int) -> list[int]:
    """Return the process ids whose parent is `parent` (proc(5))."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state ppid …: the name may hold spaces and brackets.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def release_shared_memory(folder: Path) -> None:
    """Free the System V segment of a killed PostgreSQL: postmaster.pid names it on its seventh line."""
    for path in folder.glob("*/postmaster.pid"):
        with contextlib.suppress(OSError, IndexError, ValueError, AttributeError):
            segment = int(path.read_text().splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(segment, 0, None)  # IPC_RMID


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
