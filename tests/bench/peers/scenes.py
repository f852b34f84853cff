"""Scenes of a late owner: a real process, stopped past its lease, that goes on after another has come."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.peers.stage import TABLE
from sinkfence_trials.servers.postgres import PostgresServer

HERE = Path(__file__).parent
NAMES = ["sinkfence", "fencekit", "mithril_locks", "exactly_once", "idemkit", "procrastinate", "pgqueuer"]


@dataclass(frozen=True)
class Seen:
    """What was there after the late owner had gone on, and what it was told."""

    body: str
    """Whose write stands in the user's row."""
    record: str
    """By whom it is done for the package: first, second, nobody; or how often it is; or `held` or `free`."""
    heard: list[str]
    finished: bool
    last: str
    """The record once more, when both have ended."""

    @property
    def written(self) -> bool:
        """Whether the late write stands."""
        return self.body == "first"

    @property
    def completed(self) -> bool:
        """Whether the late completion was taken, or the lock let go that was the successor's."""
        if self.record.isdigit():
            return int(self.record) > int(self.finished)
        return self.record == "first" or (self.record == "free" and not self.finished)


class Worker:
    """A worker in a process of its own."""

    def __init__(self, name: str, role: str, dsn: str, redis: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.child", f"with_{name}", role, dsn, redis],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )

    def until(self, word: str) -> str:
        """Read on to a line that begins with the word, and return the rest of it."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise RuntimeError(f"it ended before {word!r}: {self.process.stderr.read()[-2000:]}")

    def go(self) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        """Let it go on to its end, and return what it has heard."""
        heard = json.loads(self.until("end"))
        self.process.communicate()
        return heard

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def once(name: str, role: str, dsn: str, redis: str) -> str:
    """Run a short role to its end, and return what it printed."""
    worker = Worker(name, role, dsn, redis)
    out, error = worker.process.communicate()
    if worker.process.returncode:
        raise RuntimeError(error[-2000:])
    return out.strip().rpartition("\n")[2]  # some packages log to stdout


def play(name: str, server: PostgresServer, redis: str, *, finished: bool) -> Seen:
    """Stop the first worker, let the second take over, and let the first go on.

    `finished`: when the second one has done all of it; else while it is at work still.
    """
    dsn = server.create_database()
    workers: list[Worker] = []
    try:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(TABLE)
            admin.execute("insert into doc values (1, 'nobody')")
            once(name, "prepare", dsn, redis)
            for role in ("first", "second"):
                workers.append(Worker(name, role, dsn, redis))
                workers[-1].until("inside")
                if role == "first":
                    workers[0].process.send_signal(signal.SIGSTOP)
            first, second = workers
            if finished:
                second.go()
                second.end()
            first.go()  # it is there when the process wakes up
            first.process.send_signal(signal.SIGCONT)
            heard = first.end()
            [body] = admin.execute("select body from doc").fetchone()
            record = once(name, "record", dsn, redis)
            if not finished:
                second.go()
                second.end()
            return Seen(body, record, heard, finished, once(name, "record", dsn, redis))
    finally:
        for worker in workers:
            worker.kill()
        server.drop_database(dsn)


def missing(name: str, redis: str) -> str | None:
    """Return what a peer lacks to be played with, None if it lacks nothing."""
    peer = importlib.import_module(f"bench.peers.with_{name}")
    if lacks := [module for module in peer.MODULES if importlib.util.find_spec(module) is None]:
        return f"{', '.join(lacks)} not installed"
    return "no redis-server on the PATH" if peer.REDIS and not redis else None


def version(name: str) -> str:
    """Return the name of the distribution, and its version here."""
    distribution = importlib.import_module(f"bench.peers.with_{name}").DISTRIBUTION
    return f"{distribution} {importlib.metadata.version(distribution)}"


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Run a Redis server and give its URL; an empty one where there is no program for it."""
    if not (program := shutil.which("redis-server")):
        yield ""
        return
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                while not answers(port):
                    assert process.poll() is None, "redis-server has ended"
                    time.sleep(0.02)
                yield f"redis://127.0.0.1:{port}/0"
            finally:
                process.terminate()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
