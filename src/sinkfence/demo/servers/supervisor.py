"""The process between a throwaway server and whoever asked for it: when the asker is gone, so is the server.

It is run as a script with the standard library alone, makes the server's private folder, and obeys one line of JSON
after the other on its standard input, each answered by one line. Standard input is a pipe that nobody but the asker
writes to: its end means that the asker has closed it, or was killed, by whatever signal. No atexit function, signal
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
"""Seconds that a server is given to stop by itself."""


def main(base: str, asker: int) -> None:
    """Make a folder in `base`, serve the process `asker`, and leave nothing behind."""
    with contextlib.suppress(AttributeError, OSError):
        # PR_SET_CHILD_SUBREAPER, prctl(2): orphans of a killed server become children of this process.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        folder = Path(tempfile.mkdtemp(prefix="sinkfence-", dir=base))
    except OSError as error:
        answer(error=str(error))
        return
    child: subprocess.Popen[bytes] | None = None
    polite = False
    litter: list[str] = []
    try:
        answer(folder=str(folder))
        for request in requests(asker):
            if request["do"] == "start":
                polite, litter = request["polite"], request["litter"]
                try:
                    child = start(folder, request)
                    answer(pid=child.pid)
                except OSError as error:
                    answer(error=str(error))
            elif request["do"] == "kill":
                kill()
                answer()
            else:
                answer(exit=child.poll() if child else 0)
    finally:
        if child and polite and child.poll() is None:
            # PostgreSQL's immediate shutdown: it removes what it has outside of its folder (shared memory).
            child.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
        kill()
        release_shared_memory(folder)
        for path in litter:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def answer(**fields: object) -> None:
    """Write one line to the asker; it may have gone, which `requests` will notice."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def requests(asker: int) -> Iterator[dict[str, Any]]:
    """Yield what the asker wants, until it has gone."""
    pending = b""
    while True:
        while b"\n" not in pending:
            # A copy of the asker made by fork() holds the pipe's other end as well, and may outlive it: so its death
            # is looked for too.
            while not select.select([0], [], [], 0.25)[0]:
                if os.getppid() != asker:
                    return
            chunk = os.read(0, 65536)
            if not chunk:
                return
            pending += chunk
        line, _, pending = pending.partition(b"\n")
        yield json.loads(line)


def start(folder: Path, request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the server, its words appended to the folder's `log`."""
    user: dict[str, Any] = {}
    if request["user"] is not None:
        uid, gid = request["user"]
        user = {"user": uid, "group": gid, "extra_groups": []}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            # Nothing of the asker's environment: LC_*, PG* and *_proxy change what a server does.
            env={"PATH": os.defpath, "LC_ALL": "C", "HOME": str(folder), "TMPDIR": str(folder)},
            **user,
        )


def kill() -> None:
    """SIGKILL whatever descends from this process, and wait until it has gone.

    Each round kills the children; what they had started is then adopted and killed by the next one.
    """
    while pids := children(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children(parent: int) -> list[int]:
    """Return the process ids whose parent is `parent`, as proc(5) has them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state ppid: the name may hold spaces and brackets.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def release_shared_memory(folder: Path) -> None:
    """Free the System V segment that a killed PostgreSQL leaves; a postmaster.pid file names it on its seventh line."""
    for path in folder.glob("*/postmaster.pid"):
        with contextlib.suppress(OSError, IndexError, ValueError, AttributeError):
            segment = int(path.read_text().splitlines()[6].split()[1])
            ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
