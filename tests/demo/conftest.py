"""The demo as a user starts it, and what there is of it while it runs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from sinkfence.cli import main; main()"]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files that every user can get into, as TMPDIR of a demo."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.fixture
def sinkfence(scratch: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line, its output piped."""
    started: list[subprocess.Popen[str]] = []
    plain = {
        name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}
    }

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**plain, "TMPDIR": str(scratch), **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and those that they have: their states (proc(5))."""
    states: dict[int, str] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        states[int(stat.parent.name)], parents[int(stat.parent.name)] = state, int(parent)
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return {child: states[child] for child in found - {pid}}


@pytest.fixture
def watch() -> Iterator[Callable[[int], Callable[[], set[int]]]]:
    """Hold on to a process's descendants, and wait for them to end: returns those that did not."""
    held: list[int] = []

    def hold(pid: int) -> Callable[[], set[int]]:
        found = descendants(pid)
        assert "T" in found.values(), "one of them stands stopped"
        # A pidfd means that very process, whoever is given its number later (pidfd_open(2)).
        pidfds = {os.pidfd_open(child): child for child in found}
        held.extend(pidfds)

        def left() -> set[int]:
            poll = select.poll()
            waiting = dict(pidfds)
            for pidfd in waiting:
                poll.register(pidfd, select.POLLIN)
            while waiting and (ended := poll.poll(20_000)):
                for pidfd, _ in ended:
                    poll.unregister(pidfd)
                    del waiting[pidfd]
            return set(waiting.values())

        return left

    yield hold
    for pidfd in held:
        os.close(pidfd)
