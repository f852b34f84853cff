"""A disk that is full: no half of an effect is left, no stale owner gets in, and work goes on afterwards."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from sinkfence_trials.servers.postgres import PostgresServer, postgres
from sinkfence_trials.torture.run import NotRun
from sinkfence_trials.torture.scenarios.scene import Scene, took_place

CLONE_NEWNS: Final = 0x20000
MS_REC_PRIVATE: Final = 0x44000
MOUNT_POINTS: Final = ("/media", "/srv", "/mnt", "/opt")
SIZE: Final = 200_000
"""Bytes of an effect: more than the filler leaves."""

FILL: Final = """
    INSERT INTO filler SELECT string_agg(sha512(random()::text::bytea), '') FROM generate_series(1, 1024)"""


def disk(scene: Scene) -> None:
    """The effects' disk is full while A has the job, while B takes it over, and while A goes on."""
    server, small = scene.have(server_with_small_disk())
    ledger = server.create_database()
    scene.effects_in(ledger)
    with psycopg.connect(ledger, autocommit=True) as conn:
        conn.execute(f"CREATE TABLESPACE small LOCATION '{small}'".encode())
        conn.execute("ALTER TABLE torture_entry SET TABLESPACE small")
        conn.execute("CREATE TABLE filler (filling bytea) TABLESPACE small")
        conn.execute("ALTER TABLE filler ALTER filling SET STORAGE EXTERNAL")
    a, b = scene.actor("worker A"), scene.actor("worker B")
    a.holds()
    a.does("write", size=SIZE)
    before = scene.look()
    with psycopg.connect(ledger, autocommit=True) as conn:
        try:
            for _ in range(1000):
                conn.execute(FILL)
        except psycopg.errors.DiskFull:
            pass
        else:
            took_place(False, "the disk was not full")
    heard = a.does("write", size=SIZE)
    took_place(heard.get("error") == "DiskFull", f"A heard {heard}")
    a.process.stop()
    generation = b.holds()
    heard = b.does("write", size=SIZE)
    scene.expect(heard.get("error") == "DiskFull", f"B heard {heard}")
    scene.expect(scene.look() == before, "something is left of what has failed")
    a.process.go_on()
    heard = a.does("write", size=SIZE)
    scene.expect(heard.get("mark") == generation, f"the stale owner heard {heard}")
    with psycopg.connect(ledger, autocommit=True) as conn:
        conn.execute("DROP TABLE filler")
    heard = b.does("write", size=SIZE)
    scene.expect(heard["outcome"] == "ok", f"with room again B heard {heard}")
    scene.look()
    heard = a.does("write", size=SIZE)
    scene.expect(heard.get("mark") == generation, f"with room again the stale owner heard {heard}")
    scene.look()
    b.does("leave")


@contextmanager
def server_with_small_disk() -> Generator[tuple[PostgresServer, str]]:
    """Run a PostgreSQL server that sees a disk of 2 MB where everybody else sees an empty folder.

    The mount is in a namespace of its own (mount_namespaces(7)), which is the server's alone: it is gone
    with the server, however that ends.

    Raises:
        NotRun: only root may mount.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NotRun("to mount a small disk takes root, on Linux")
    places = [place for place in MOUNT_POINTS if Path(place).is_dir() and not any(Path(place).iterdir())]
    if not places:
        raise NotRun(f"none of {', '.join(MOUNT_POINTS)} is an empty folder to mount a small disk over")
    running = postgres()
    server: list[PostgresServer] = []
    errors: list[Exception] = []

    def start() -> None:
        try:
            mount_small(places[0])
            server.append(running.__enter__())
            cluster = server[0].cluster
            if cluster is not None and cluster.user is not None:
                os.chown(places[0], *cluster.user)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)

    # A thread leaves the namespace of the others, and what it starts is where it is.
    thread = threading.Thread(target=start, name="start in a namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    try:
        yield server[0], places[0]
    finally:
        running.__exit__(None, None, None)


def mount_small(place: str) -> None:
    """Leave the namespace of mounts, and mount 2 MB over a folder (unshare(2), mount(2)).

    Raises:
        NotRun: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for call, *arguments in (
        (libc.unshare, CLONE_NEWNS),
        (libc.mount, b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None),
        (libc.mount, b"tmpfs", place.encode(), b"tmpfs", ctypes.c_ulong(0), b"size=2m"),
    ):
        if call(*arguments) != 0:
            raise NotRun(f"a small disk cannot be mounted here: {os.strerror(ctypes.get_errno())}")
