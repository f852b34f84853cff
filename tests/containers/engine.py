"""A container engine that answers: the one that is there, or Docker's daemon started for us alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
from docker.errors import DockerException

PATIENCE = 60
"""Seconds for the daemon to answer."""


class NoEngine(Exception):
    """There is none here, and why."""


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """Yield the address of an engine; only one that was started here is stopped again.

    Raises:
        NoEngine: none answers, and none can be started.
    """
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if answers(address):
        yield address
        return
    daemon = shutil.which("dockerd")
    if daemon is None or os.geteuid() != 0:
        raise NoEngine("no container engine answers, and to start one takes root and dockerd")
    with tempfile.TemporaryDirectory(prefix="sinkfence-engine-") as folder:
        yield from started(daemon, Path(folder))


def started(daemon: str, folder: Path) -> Iterator[str]:
    """Run the daemon with everything that it keeps in a folder of ours."""
    address = f"unix://{folder}/docker.sock"
    kept = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen([daemon, "--host", address, *kept], stdout=written, stderr=written)
        try:
            # It says on its log that it is ready, which cannot be waited for; asked, it answers then.
            for _ in range(PATIENCE * 10):
                if answers(address):
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
                    raise NoEngine(f"dockerd ended with {process.returncode}: {last(log)}")
            else:
                raise NoEngine(f"dockerd did not answer within {PATIENCE} s: {last(log)}")
            yield address
        finally:
            process.terminate()  # it stops its containers, and unmounts them
            process.wait()


def answers(address: str) -> bool:
    """Whether an engine is there."""
    if address.startswith("unix://") and not Path(address.removeprefix("unix://")).is_socket():
        return False
    try:
        with contextlib.closing(docker.DockerClient(address, timeout=2)) as client:
            return bool(client.ping())
    except (DockerException, OSError):
        return False


def last(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(errors="replace").splitlines() or ["it said nothing"]
    return lines[-1]
