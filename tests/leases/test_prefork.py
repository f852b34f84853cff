"""Celery and gunicorn with forked workers, and a manager at module level that was used before the fork.

A task is delivered twice, also while it runs: two workers are at it at the same moment, one of them is let
in, and one row is there in the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from celery import Celery

import sinkfence_postgres
from sinkfence_trials.servers import binaries

HERE = Path(__file__).parent


@pytest.fixture
def start(
    pg_url: str, admin: psycopg.Connection, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts programs that find this folder's modules and the database; they are stopped at the end."""
    sinkfence_postgres.install(admin)
    admin.execute("drop table if exists charge, told")
    admin.execute("create table charge (job int primary key, generation bigint)")
    admin.execute("create table told (job int, what text, pid int, inherited text)")
    started: list[subprocess.Popen[bytes]] = []
    environment = os.environ | {"LEASES_URL": pg_url, "BROKER": str(tmp_path), "PYTHONPATH": str(HERE)}
    environment["HOME"] = str(tmp_path)  # where gunicorn puts a socket

    def run(*words: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment))
        return started[-1]

    yield run
    for process in started:
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(20)
        finally:
            process.kill()


def until_told(admin: psycopg.Connection, times: int) -> None:
    """Wait until so many deliveries were answered."""
    while admin.execute("select count(*) from told").fetchone() < (times,):
        admin.execute("select pg_sleep(0.02)")


def one_row_a_job(admin: psycopg.Connection, jobs: int) -> None:
    """Of three deliveries of each, one was let in, in one of two processes; the parent has its lease."""
    told = admin.execute("select job, what from told order by 1, 2").fetchall()
    assert told == [(job, what) for job in range(jobs) for what in ("charged", "completed", "held")]
    charged = admin.execute("select job, generation from charge order by 1").fetchall()
    assert charged == [(job, 1) for job in range(jobs)]
    assert admin.execute("select count(distinct pid) from told").fetchone() == (2,)
    assert admin.execute("select distinct inherited from told").fetchall() == [("no lease",)]
    held = "select generation, lease_until > clock_timestamp() from sinkfence_lease where job_id = %s"
    assert admin.execute(held, ("the parent's",)).fetchall() == [(1, True)]


def test_celery(
    start: Callable[..., subprocess.Popen[bytes]], admin: psycopg.Connection, tmp_path: Path
) -> None:
    """C95: a task that is delivered again while it runs is refused there; it is done once."""
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    start("-W", "ignore", "-m", "celery", "-A", "celery_app", "worker", "-P", "prefork", "-c", "2", *options)
    outbox, folder = tmp_path / "outbox", str(tmp_path)
    outbox.mkdir()
    with Celery(broker="filesystem://", set_as_current=False) as sender:
        sender.conf.broker_transport_options = {
            "data_folder_in": folder,
            "data_folder_out": str(outbox),
            "control_folder": folder + "/control",
        }
        for times in (2, 3, 5, 6):
            job = times // 4
            for _ in range(times - admin.execute("select count(*) from told").fetchone()[0]):
                sender.send_task("preforked.charge", [job])
            for message in outbox.iterdir():
                message.rename(tmp_path / message.name)  # kombu would read one that is only half written
            until_told(admin, times)
    one_row_a_job(admin, 2)


def test_gunicorn(start: Callable[..., subprocess.Popen[bytes]], admin: psycopg.Connection) -> None:
    """A request that is repeated while it runs is refused there; it is done once."""
    [port] = binaries.free_ports(1)
    address = ["-b", f"127.0.0.1:{port}", "--log-level", "critical"]
    start(
        "-m",
        "gunicorn",
        "wsgi_app:app",
        "--preload",
        "-w",
        "2",
        *address,
        "-t",
        "90",
        "--log-level",
        "critical",
    )
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing", timeout=60)
        except urllib.error.HTTPError:
            break
        except OSError:
            admin.execute("select pg_sleep(0.05)")

    def ask(job: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{job}", timeout=60) as response:
            return response.read().decode()

    with ThreadPoolExecutor(2) as pool:
        for job in range(2):
            assert sorted(pool.map(ask, [job, job])) == ["charged", "held"]
            assert ask(job) == "completed"
    one_row_a_job(admin, 2)
