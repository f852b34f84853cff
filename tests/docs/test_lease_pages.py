"""The pages on leases: workers, leaders, shutting down, counters of other systems; their examples run."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests
from kazoo.client import KazooClient
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from sinkfence import LeaseHeld, Leases, StaleToken, Token
from sinkfence.marks import MemoryMarks
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.servers.supervised import Supervised

ROOT = Path(__file__).parents[2]
RunPage = Callable[..., dict[str, Any]]

JAVA, ZOOKEEPER = shutil.which("java"), Path("/usr/share/java/zookeeper.jar")


def test_workers(run_page: RunPage) -> None:
    """A job is done once, however it is started and however often it is delivered."""
    names = run_page("docs/how-to/workers.md")
    leases = names["leases"]
    with leases.hold("charge/43"):
        assert names["charge"](43) == "not mine to do"
    leases.close()


def test_lead_for_ever(run_page: RunPage, common: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """A leader that a sink has refused stands by, leads again, and gives the job back when it is stopped."""
    seen = []

    def work(lease: Any) -> None:
        seen.append(lease.generation)
        if len(seen) == 1:
            common.ledger.arm(Token(lease.job_id, 5, "another:1"))
            common.ledger.arm(lease)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    try:
        run_page("docs/how-to/lead-for-ever.md", work=work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1, 7]
    assert capsys.readouterr().out.startswith("deposed: ")


SHUT_DOWN = """
import sys
def piece(lease):
    print("at work", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("stops", [True, False])
def test_shut_down(tmp_path: Path, stops: bool) -> None:
    """C69: on SIGTERM the work ends and then the lease; where the work doesn't end, it is not released."""
    document = Sybil([PythonCodeBlockParser()]).parse(ROOT / "docs/how-to/shut-down.md")
    [page] = [str(example.parsed) for example in document.examples()]
    assert "timeout=20)" in page
    page = page if stops else page.replace("timeout=20)", "timeout=0.2)")
    leases = Leases(SqlStore(f"sqlite:///{tmp_path}/leases.db"))
    with subprocess.Popen(
        [sys.executable, "-c", SHUT_DOWN + page],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            assert worker.stdout.readline() == "at work\n"
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(LeaseHeld):
                leases.acquire("reports/latest")
            if stops:
                # And the end of its input: the worker may come round once more before its main thread runs
                # the handler, as the signal may be another thread's to take.
                worker.communicate("\n", timeout=60)
            assert worker.wait(60) == (0 if stops else 1)
        finally:
            worker.kill()
    assert (leases.get("reports/latest").owner is None) == stops
    leases.close()


@pytest.fixture
def zookeeper(server: Callable[..., AbstractContextManager[int]]) -> Iterator[KazooClient]:
    """A client of a ZooKeeper server."""
    if JAVA is None or not ZOOKEEPER.exists():
        pytest.skip("not run: there is no ZooKeeper (Debian's zookeeperd)")

    def words(process: Supervised, port: int, second: int) -> list[object]:
        settings = process.folder / "zoo.cfg"
        settings.write_text(
            f"tickTime=500\ndataDir={process.folder}/data\nclientPort={port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        quick = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j.configuration=none"]
        return [JAVA, *quick, "-cp", ZOOKEEPER, main, settings]

    with server("ZooKeeper", words) as port:
        answer = b""
        while (
            b"Mode: " not in answer
        ):  # it accepts before it serves, and would leave a client without an answer
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.sendall(b"srvr")
                answer = sock.recv(4096)
        client = KazooClient(f"127.0.0.1:{port}")
        client.start(60)
        yield client
        client.stop()
        client.close()


def turns(acquire: Callable[[str], Any], release: Callable[[str], object]) -> None:
    """Of two that ask one is let in; the next one's number is higher, and the sink refuses the first."""
    job, marks = f"reports/{secrets.token_hex(4)}", MemoryMarks()
    first = acquire(job)
    marks.arm(first)
    with pytest.raises(LeaseHeld):
        acquire(job)
    release(job)
    second = acquire(job)
    assert second.generation > first.generation
    marks.arm(second)
    with pytest.raises(StaleToken):
        marks.arm(first)


def test_etcd(run_page: RunPage, etcd: str) -> None:
    """A key's create_revision is a generation."""
    names = run_page("docs/how-to/foreign-counters.md")

    def release(job: str) -> None:
        key = names["base64"].b64encode(f"leases/{job}".encode()).decode()
        requests.post(f"{etcd}/v3/kv/deleterange", json={"key": key}, timeout=5).raise_for_status()

    turns(lambda job: names["from_etcd"](etcd, job, 60), release)


def test_zookeeper(run_page: RunPage, zookeeper: KazooClient) -> None:
    """A node's czxid is a generation."""
    names = run_page("docs/how-to/foreign-counters.md")
    turns(
        lambda job: names["from_zookeeper"](zookeeper, job),
        lambda job: zookeeper.delete(f"/leases/{names['quote'](job, safe='')}"),
    )
