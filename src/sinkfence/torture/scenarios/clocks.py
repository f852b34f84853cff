"""Workers whose clocks are wrong, run fast or slow, or jump: they decide nothing."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from sinkfence.stores.sql import SqlStore
from sinkfence.torture.run import NotRun
from sinkfence.torture.scenarios.scene import CLOCK, Scene, took_place

CLOCKS: Final[dict[str, tuple[str, Callable[[float], bool]]]] = {
    "slow by an hour": ("-3600", lambda skew: skew < -1800),
    "fast by an hour": ("+3600", lambda skew: skew > 1800),
    "at double rate": ("+0 x2", lambda skew: 0.1 < skew < 1800),  # since it was started
}
"""libfaketime's word for each, and whether it is seen by how many seconds the clock is off."""
JUMPS: Final = (-3600.0, 3600.0, 0.0)
TTL: Final = 60.0

RENEWED: Final = """
    SELECT lease_until > to_timestamp(%s) AND lease_until > clock_timestamp()
    FROM sinkfence_lease WHERE job_id = %s"""


def environment(clock: dict[str, str]) -> dict[str, str]:
    """Variables for another wall clock; the monotonic and boot-time clocks stay real.

    Raises:
        NotRun: libfaketime is not here.
    """
    found = importlib.util.find_spec("libfaketime")
    library = Path(found.origin or "").parent / "vendor/libfaketime/src/libfaketime.so.1" if found else None
    if library is None or not library.exists():
        raise NotRun(
            "libfaketime is not installed: pip install libfaketime, which builds it with a C compiler"
        )
    fixed = {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
    return fixed | clock


def wrong(scene: Scene) -> None:
    """Each asks while another holds the job, and has it afterwards for a whole ttl by the store's clock."""
    holder = scene.actor("the holder", ttl=TTL)
    askers = {
        name: scene.actor(name, environment=environment({"FAKETIME": clock}), ttl=TTL)
        for name, (clock, _) in CLOCKS.items()
    }
    holder.holds()
    for name, asker in askers.items():
        skew = asker.does("tell_time")["time"] - time.time()
        took_place(CLOCKS[name][1](skew), f"{name}: its clock is {skew} s off")
        heard = asker.does("try_hold")
        scene.expect(heard.get("error") == "LeaseHeld", f"{name}: heard {heard} while the job was held")
        scene.expect(0 < heard.get("retry_after", 0) <= TTL, f"{name}: told to wait as {heard} says")
    holder.does("leave")
    for name, asker in askers.items():
        (earliest,) = scene.observer.ask(CLOCK)[0]
        asker.holds()
        (latest,) = scene.observer.ask(CLOCK)[0]
        # The heartbeat may have renewed it since, which begins a ttl anew.
        granted = asker.until - TTL
        scene.expect(earliest <= granted <= latest, f"{name}: granted at {granted}, asked at {earliest}")
        scene.expect(asker.does("write")["outcome"] == "ok", f"{name}: its write was not accepted")
        scene.observer.look()
        asker.does("leave")


def jumping(scene: Scene) -> None:
    """The holder's clock jumps by hours, back and forth, under its heartbeat."""
    file = scene.run.folder / "offset"
    file.write_text("+0\n")
    clock = {"FAKETIME_TIMESTAMP_FILE": str(file)}
    holder = scene.actor("the holder", environment=environment(clock), ttl=60.0, heartbeat=0.2)
    other = scene.actor("another")
    first = holder.holds()
    for offset in JUMPS:
        new = file.with_suffix(".new")
        new.write_text(f"{offset:+.0f}\n")
        new.replace(file)  # at once: a half-written one would be another offset
        skew = holder.does("tell_time")["time"] - time.time()
        took_place(abs(skew - offset) < 60, f"the clock did not jump: {skew} s off, not {offset}")
        for _ in range(2):  # the first may have been on its way
            with closing(SqlStore(scene.dsn)) as store:
                record = store.get(scene.job)
            took_place(record is not None and record.lease_until is not None, "there is no lease")
            assert record is not None
            assert record.lease_until is not None
            scene.observer.wait_for("a renewal", RENEWED, record.lease_until.timestamp(), scene.job)
        heard = other.does("try_hold")
        scene.expect(heard.get("error") == "LeaseHeld", f"another heard {heard} after a jump")
        scene.expect(holder.does("write")["outcome"] == "ok", "the holder's write was not accepted")
        scene.observer.look()
    with closing(SqlStore(scene.dsn)) as store:
        record = store.get(scene.job)
    scene.expect(record is not None and record.generation == first, "the job had another owner")
    scene.expect(holder.does("leave").get("error") is None, "the holder has lost its lease")
