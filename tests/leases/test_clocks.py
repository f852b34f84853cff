"""Clocks of clients that are wrong, jump, or show other times of the day: they decide nothing."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sinkfence import Leases
from sinkfence.stores.sql import SqlStore

JOB = "invoice-42"

found = importlib.util.find_spec("libfaketime")
LIBRARY = found and Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"

pytestmark = [
    pytest.mark.skipif(
        LIBRARY is None or not LIBRARY.exists(),
        reason="not run: libfaketime (extra `test`) was not built here",
    ),
    pytest.mark.skipif(
        bool(set(" :") & set(str(LIBRARY))),
        reason="not run: LD_PRELOAD takes no path with a space or a colon in it, as libfaketime's is here",
    ),
]

Start = Callable[..., Any]


@pytest.fixture
def elsewhen(child: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a process with another wall clock; its monotonic and boot-time clocks are real."""

    def start(script: str, *args: str, **environment: str) -> Any:
        with monkeypatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(LIBRARY))
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            patch.setenv("FAKETIME_NO_CACHE", "1")
            for name, value in environment.items():
                patch.setenv(name, value)
            return child(script, *args)

    return start


ASKER = """
import sys, time
from sinkfence import LeaseHeld, Leases
from sinkfence.stores.sql import SqlStore
leases = Leases(SqlStore(sys.argv[1]), ttl=60)
print(time.time(), flush=True)
try:
    leases.acquire(sys.argv[2])
except LeaseHeld as held:
    print(held.retry_after, flush=True)
sys.stdin.readline()
lease = leases.acquire(sys.argv[2])
print(lease.lease_until.timestamp(), lease.remaining(), flush=True)
lease.renew()
lease.complete()
"""


@pytest.mark.parametrize("clock", ["+3600", "-3600", "+180", "-180", "+0 x2", "+0 x0.5"])
def test_a_client_with_a_wrong_clock(
    pg_url: str, pg: SqlStore, admin: psycopg.Connection, elsewhen: Start, clock: str
) -> None:
    """C54: by the store's clock the lease is held until it ends, and the new one is a whole ttl long."""

    def now() -> float:
        return admin.execute("select clock_timestamp()").fetchone()[0].timestamp()

    leases = Leases(pg, ttl=60)
    held = leases.acquire(JOB)
    client = elsewhen(ASKER, pg_url, JOB, FAKETIME=clock)
    skew = float(client.hear()) - time.time()
    assert abs(skew - float(clock.split(maxsplit=1)[0])) < 60  # it does see another time
    assert 0 < float(client.hear()) <= 60
    held.release()
    before = now()
    client.say("now it is free")
    until, remaining = map(float, client.hear().split())
    assert before <= until - 60 <= now()
    assert 0 < remaining < 60
    assert client.process.wait(60) == 0
    assert leases.get(JOB).state == "done"


HOLDER = """
import sys, time
from sinkfence import Leases
from sinkfence.stores.sql import SqlStore
lost = []
leases = Leases(SqlStore(sys.argv[1]), ttl=30, heartbeat=0.05, on_lost=lambda *_: lost.append(_))
with leases.hold(sys.argv[2]) as lease:
    print("holds", flush=True)
    while sys.stdin.readline() != "end\\n":
        lease.token
        print(time.time(), time.localtime().tm_isdst, len(lost), lease.lease_until.isoformat(), flush=True)
leases.close()
"""

SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()  # when Berlin's clocks go from 02:00 to 03:00
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()


def test_a_clock_that_jumps_under_a_heartbeat(
    pg_url: str, pg: SqlStore, elsewhen: Start, tmp_path: Path
) -> None:
    """C58: -1 h, +1 h, into and out of summer time, in a half-hour zone: beats go on, nothing is lost."""
    file = tmp_path / "offset"
    file.write_text("+0\n")
    holder = elsewhen(
        HOLDER, pg_url, JOB, FAKETIME_TIMESTAMP_FILE=str(file), TZ="Europe/Berlin", PGTZ="Asia/Kathmandu"
    )
    assert holder.hear() == "holds"
    leases = Leases(pg)
    start = time.time()
    summer = []
    for moment in (start - 3600, start + 3600, SPRING - 60, SPRING + 60, AUTUMN - 60, AUTUMN + 60):
        offset = moment - time.time()
        new = file.with_suffix(".new")
        new.write_text(f"{offset:+.0f}\n")
        new.replace(file)  # at once: a half-written one would be another offset
        seen = leases.get(JOB)
        for _ in range(2):  # the first may have been on its way
            while leases.get(JOB).lease_until == seen.lease_until:
                assert leases.get(JOB).remaining > 0
            seen = leases.get(JOB)
        holder.say("?")
        shown, is_summer, lost, until = holder.hear().split()
        assert abs(float(shown) - moment) < 60
        summer.append(is_summer)
        assert lost == "0"
        assert until.endswith("+00:00")
    assert summer[2:] == ["0", "1", "1", "0"]
    assert leases.get(JOB).generation == 1
    holder.say("end")
    assert holder.process.wait(60) == 0
