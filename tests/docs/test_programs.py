"""The programs in docs/examples, run as somebody would who has copied them. (The services: tests/http.)"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from celery import Celery
from sqlalchemy import Engine, text

from sinkfence import Leases, StaleToken, Token
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink
from sinkfence_s3 import FencedBucket

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
Run = Callable[..., str]


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    """What a program finds in its environment."""
    return os.environ | {"DATABASE_URL": url, "HOME": str(tmp_path), "PYTHONPATH": str(EXAMPLES)}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run one of the programs, in an empty folder, and return what it prints."""

    def run(program: str, *words: str, **more: str) -> str:
        command = [sys.executable, EXAMPLES / program, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | more, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def leases(engine: Engine) -> Iterator[Leases]:
    """A manager of leases in the database: another worker's."""
    with Leases(SqlStore(engine), ttl=3) as leases:
        yield leases


def test_every_program_is_on_the_page() -> None:
    """The page names each file, and no other."""
    page = (EXAMPLES / "index.md").read_text()
    assert [name.name for name in EXAMPLES.glob("*.py") if f"<{name.name}>`" not in page] == []


def test_cron_leader(run: Run, engine: Engine, leases: Leases) -> None:
    """The day is closed by one host: one that comes meanwhile goes away, a late one hears what was done."""
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (id int PRIMARY KEY, closed_on text)"))
        conn.execute(text("INSERT INTO orders VALUES (1), (2)"))
    with leases.hold("close-the-day"):
        assert run("cron_leader.py", "2026-05-01") == "another host is at it\n"
    closed = "2026-05-01 is closed, with 2 orders\n"
    assert run("cron_leader.py", "2026-05-01") == closed
    with engine.begin() as conn:
        conn.execute(text("INSERT INTO orders VALUES (3)"))
    assert run("cron_leader.py", "2026-05-01") == closed
    with engine.begin() as conn:
        open_yet = conn.execute(text("SELECT id FROM orders WHERE closed_on IS NULL"))
        assert open_yet.scalars().all() == [3]


def test_pandas_to_s3(run: Run, s3_server: Any, s3_client: Any, prefix: str, tmp_path: Path) -> None:
    """The totals are replaced, a repetition changes nothing, and an older owner is refused afterwards."""
    server = {
        "AWS_ENDPOINT_URL_S3": s3_server.endpoint,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_DEFAULT_REGION": s3_server.region,
        "BUCKET": s3_server.bucket,
    }
    program = (EXAMPLES / "pandas_to_s3.py").read_text()
    assert '"daily/"' in program
    (tmp_path / "program.py").write_text(program.replace('"daily/"', repr(prefix)))
    (tmp_path / "sales.csv").write_text("shop,euros\nb,4\na,1\na,2\n")
    totals = FencedBucket(s3_client, s3_server.bucket, prefix=prefix).object("totals.parquet")
    seen = []
    for _ in range(2):
        shown = run(str(tmp_path / "program.py"), "sales.csv", "2026-05-01", **server)
        assert shown == "shop  euros\n   a      3\n   b      4\n"
        seen.append(totals.stat())
    assert [each.generation for each in seen] == [1, 2]
    assert seen[0].sha256 == seen[1].sha256
    with pytest.raises(StaleToken):
        totals.put(b"late", Token("daily/totals", 1, "worker:late"))


def test_token_from_etcd(run: Run, engine: Engine, etcd: str) -> None:
    """One worker is let in at a time; its number is higher than the last one's, which is refused then."""
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE booking (account text, amount int)"))

    def book() -> str:
        return run("token_from_etcd.py", "account-17", "40", ETCD_URL=etcd)

    generations = []
    for said in (book(), book()):
        assert said.startswith("booked as generation ")
        generations.append(int(said.rpartition(" ")[2]))
    assert generations[0] < generations[1]
    held = {"key": "bGVhc2VzL2FjY291bnQtMTc=", "value": "YW5vdGhlcg=="}  # leases/account-17: another
    requests.post(f"{etcd}/v3/kv/put", json=held, timeout=5).raise_for_status()
    assert book() == "job 'account-17' is held: try again in 30 s\n"
    with pytest.raises(StaleToken):
        PostgresSink(engine).arm(Token("account-17", generations[0], "worker:late"))
    with engine.begin() as conn:
        assert conn.execute(text("SELECT amount FROM booking")).scalars().all() == [40, 40]


CONFIGURED = """
import os
from celery_worker import app, charge
folder = os.environ["FOLDER"]
app.conf.broker_transport_options = {
    "data_folder_in": folder, "data_folder_out": folder, "control_folder": folder + "/control",
    "polling_interval": 0.05,
}
"""


@pytest.fixture
def celery(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The example's worker with two processes, and a folder as its broker; it logs what came of each task."""
    (tmp_path / "configured.py").write_text(CONFIGURED)
    environment |= {"BROKER_URL": "filesystem://", "FOLDER": str(tmp_path)}
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "configured:app", "worker", "-c", "2"]
    options = ["-l", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    with subprocess.Popen(
        [*command, *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as worker:
        yield worker
        os.killpg(worker.pid, signal.SIGKILL)


def test_celery_worker(celery: subprocess.Popen[str], engine: Engine, leases: Leases, tmp_path: Path) -> None:
    """A task that comes twice is done once; one whose job is held comes again when that lease is over."""
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE charge (id serial PRIMARY KEY, invoice int, amount int)"))
    outbox, folder = tmp_path / "outbox", str(tmp_path)
    outbox.mkdir()

    def told() -> str:
        for line in celery.stdout:
            if found := re.search(r"\] (?:succeeded in \S+|retry): (.*)", line):
                return found[1].strip("'")
            assert "Traceback" not in line, line + celery.stdout.read()
        pytest.fail("the worker has ended")

    with Celery(broker="filesystem://", set_as_current=False) as sender:
        sender.conf.broker_transport_options = {
            "data_folder_in": folder,
            "data_folder_out": str(outbox),
            "control_folder": folder + "/control",
        }

        def send(invoice: int) -> None:
            sender.send_task("celery_worker.charge", [invoice, 100])
            for message in outbox.iterdir():
                message.rename(tmp_path / message.name)  # kombu would read one that is only half written

        answers = []
        for _ in range(2):
            send(42)
            answers.append(told())
        assert answers == ["charged", "was charged before"]
        with leases.hold("charge/43"):
            send(43)
            assert told().startswith("Retry in ")
        assert told() == "charged"
    with engine.begin() as conn:
        rows = conn.execute(text("SELECT invoice, amount FROM charge ORDER BY 1")).all()
    assert rows == [(42, 100), (43, 100)]
