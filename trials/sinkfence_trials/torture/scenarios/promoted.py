"""The lease store loses acknowledged acquisitions: a standby is promoted that has not heard of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Literal

from sinkfence.stores.sql import SqlStore
from sinkfence_trials.servers.standby import Pair, pair
from sinkfence_trials.torture.scenarios.actor import Actor
from sinkfence_trials.torture.scenarios.scene import Scene, took_place


def lossy(floor: Literal["clock"] | None) -> Callable[[Scene], None]:
    """A has the job by an acquisition that is lost; B has it from the new primary; A writes."""

    def play(scene: Scene) -> None:
        servers = scene.have(pair())
        with closing(SqlStore(servers.dsn)) as store:
            store.create_schema()
        # A store that has lost commits does issue numbers again: what counts is what owners get to see.
        scene.sees_leases = False
        a = scene.actor("worker A", leases=servers.dsn, floor=floor, ttl=300.0)
        first = a.holds()
        a.does("leave")
        lost = loses(scene, servers, a)
        b = scene.actor("worker B", leases=servers.dsn, floor=floor, ttl=300.0)
        with closing(SqlStore(servers.dsn)) as store:
            record = store.get(scene.job)
        took_place(record is not None and record.generation == first, "the standby had heard of it")
        generation = b.holds()
        scene.expect(generation > lost, f"{generation} was issued, and {lost} is lost")
        if (
            floor is None
        ):  # the lost number comes again, a sink knows it under another owner, one more is issued
            scene.expect(generation == lost + 1, f"{generation} was issued after {lost}")
        b.does("write")
        scene.look()
        heard = a.does("write")
        scene.expect(heard.get("error") == "StaleToken", f"the lost owner's write was answered by {heard}")
        scene.look()
        b.does("write")
        scene.look()

    return play


def loses(scene: Scene, servers: Pair, a: Actor) -> int:
    """Fail over; return the generation that A got, and the standby has never heard of."""
    lost = 0

    def work() -> None:
        nonlocal lost
        lost = a.holds()
        a.does("write")
        scene.look()
        scene.history.add("failover", "invoke", "", lossy=True)

    servers.follow()
    servers.lose(work)
    scene.history.add("failover", "ok", "", lossy=True)
    return lost
