"""A process of its own that owns servers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

OWNER = Path(__file__).with_name("owner.py")


@dataclass
class Owner:
    """A process that owns servers, and what it has told of them."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    def wait_for_supervisors(self) -> None:
        """Return when the supervisors have ended, as pidfds tell."""
        for pid in self.told["supervisors"]:
            with contextlib.suppress(ProcessLookupError):
                watch = os.pidfd_open(pid)
                try:
                    assert select.select([watch], [], [], 30)[0], f"supervisor {pid} is still there"
                finally:
                    os.close(watch)

    def left(self) -> set[str]:
        """Return the kinds of things that there are of the servers."""
        kinds = set()
        for pid in self.told["servers"] + self.told["backends"]:
            with contextlib.suppress(OSError):
                # A zombie is as good as gone: its parent has gone, and whoever reaps it is not ours.
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "XZ":
                    kinds.add("process")
        kinds |= {Path(path).suffix or "folder" for path in self.told["paths"] if Path(path).exists()}
        segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        if any(int(creator) == self.told["postmaster"] for _, _, _, _, creator, *_ in segments):
            kinds.add("shared memory")
        return kinds


@pytest.fixture
def own_servers() -> Iterator[Callable[..., Owner]]:
    """Start a process that owns servers, as owner.py has it: `own_servers("crash", "s3")`."""
    owners: list[Owner] = []

    def start(*words: str) -> Owner:
        process = subprocess.Popen(
            [sys.executable, OWNER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        owners.append(Owner(process, json.loads(process.stdout.readline())))
        return owners[-1]

    yield start
    for owner in owners:
        with owner.process:
            owner.process.kill()
        if owner.told["fork"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.told["fork"], signal.SIGKILL)
