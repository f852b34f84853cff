"""Workers whose clocks are wrong, run fast or slow, or jump: they decide nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from sinkfence.stores.sql import SqlStore
from sinkfence_trials.torture.clocks import environment, jump
from sinkfence_trials.torture.scenarios.scene import CLOCK, Scene, took_place

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


def wrong(scene: Scene) -> None:
    """Each asks while another holds the job, and has it afterwards for a whole ttl by the store's clock."""
    holder = scene.actor("the holder", ttl=TTL)
    askers = {
        name: scene.actor(
            name, environment=environment(scene.run.folder / name.replace(" ", "-"), clock), ttl=TTL
        )
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
        (earliest,) = scene.ask(CLOCK)[0]
        asker.holds()
        (latest,) = scene.ask(CLOCK)[0]
        # The heartbeat may have renewed it since, which begins a ttl anew.
        granted = asker.until - TTL
        scene.expect(earliest <= granted <= latest, f"{name}: granted at {granted}, asked at {earliest}")
        scene.expect(asker.does("write")["outcome"] == "ok", f"{name}: its write was not accepted")
        scene.look()
        asker.does("leave")


def jumping(scene: Scene) -> None:
    """The holder's clock jumps by hours, back and forth, under its heartbeat."""
    file = scene.run.folder / "offset"
    holder = scene.actor("the holder", environment=environment(file), ttl=60.0, heartbeat=0.2)
    other = scene.actor("another")
    first = holder.holds()
    for offset in JUMPS:
        jump(file, f"{offset:+.0f}")
        skew = holder.does("tell_time")["time"] - time.time()
        took_place(abs(skew - offset) < 60, f"the clock did not jump: {skew} s off, not {offset}")
        for _ in range(2):  # the first may have been on its way
            with closing(SqlStore(scene.dsn)) as store:
                record = store.get(scene.job)
            took_place(record is not None and record.lease_until is not None, "there is no lease")
            assert record is not None
            assert record.lease_until is not None
            scene.wait_for("a renewal", RENEWED, record.lease_until.timestamp(), scene.job)
        heard = other.does("try_hold")
        scene.expect(heard.get("error") == "LeaseHeld", f"another heard {heard} after a jump")
        scene.expect(holder.does("write")["outcome"] == "ok", "the holder's write was not accepted")
        scene.look()
    with closing(SqlStore(scene.dsn)) as store:
        record = store.get(scene.job)
    scene.expect(record is not None and record.generation == first, "the job had another owner")
    scene.expect(holder.does("leave").get("error") is None, "the holder has lost its lease")
