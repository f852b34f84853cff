"""What befalls a worker from within: a fork, a C call that keeps the GIL, a blocked event loop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sinkfence_trials.torture.scenarios.scene import Scene, took_place

PASSED: Final = "SELECT clock_timestamp() > to_timestamp(%s)"

RENEWED: Final = "SELECT lease_until > to_timestamp(%s) FROM sinkfence_lease WHERE job_id = %s"


def fifo_of(scene: Scene) -> Path:
    """Make what holds a worker up until it is written to."""
    path = scene.run.folder / "until"
    os.mkfifo(path)
    return path


def let_go(fifo: Path) -> None:
    """Let go who reads there; never wait for a reader, who may have died."""
    out = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    os.write(out, b"\n")
    os.close(out)


def forked(scene: Scene) -> None:
    """A forks in its lease: the child has none, A keeps its own, and what the child does later is late."""
    fifo = fifo_of(scene)
    a, b = scene.actor("worker A", ttl=60.0), scene.actor("worker B")
    a.holds()
    a.does("write")
    a.order("forks", until=str(fifo))
    told = {event["event"]: event for event in (a.hear("forks", "inherited"), a.hear("forks", "inherited"))}
    took_place(told.get("forks", {}).get("pid", 0) > 0, f"there is no child: {told}")
    for use in ("token", "renew", "complete", "release"):
        scene.expect(
            told["inherited"][use] == "LeaseLost", f"in the child: {use} was {told['inherited'][use]}"
        )
    scene.expect(a.does("write")["outcome"] == "ok", "the parent's write was not accepted")
    scene.expect(a.does("leave").get("error") is None, "the parent has lost its lease")
    generation = b.holds()
    b.does("write")
    scene.look()
    let_go(fifo)
    heard = a.hear("child")
    scene.expect(heard.get("mark") == generation, f"the child's late write was answered by {heard}")
    scene.ends(b)


def gil(scene: Scene) -> None:
    """A C call keeps A's GIL until its lease has run out, whatever its heartbeat, and B has written."""
    fifo = fifo_of(scene)
    a, b = scene.actor("worker A", ttl=2.5, heartbeat=0.2), scene.actor("worker B")
    a.holds()
    a.does("write")
    scene.wait_for("a renewal by A's heartbeat", RENEWED, a.until, scene.job)
    a.order("keep_gil", until=str(fifo))
    a.hear("inside")
    generation = b.holds()  # a heartbeat would have kept it out for ever
    b.does("write")
    scene.look()
    let_go(fifo)
    scene.expect(a.hear("keep_gil").get("over") is True, "A takes its lease for good after the call")
    heard = a.does("write")
    scene.expect(heard.get("mark") == generation, f"the late write was answered by {heard}")
    scene.look()
    left = a.does("leave")
    scene.expect(left.get("error") == "LeaseLost", f"A was not told of its loss: {left}")
    scene.ends(b)


def loop(scene: Scene) -> None:
    """A's event loop is blocked past its ttl: its heartbeat, which is no task, keeps the job for it."""
    fifo = fifo_of(scene)
    a, b = scene.actor("worker A", ttl=3.0, heartbeat=0.2), scene.actor("worker B")
    a.order("block_loop", until=str(fifo))
    until = a.hear("blocks")["until"]
    a.wait_until_it_waits()
    scene.wait_for("the end of the first term", PASSED, until)
    scene.wait_for("a renewal by A's heartbeat", RENEWED, until, scene.job)
    heard = b.does("try_hold")
    scene.expect(heard.get("error") == "LeaseHeld", f"B heard {heard} while A held the job")
    let_go(fifo)
    heard = a.hear("block_loop")
    scene.expect(heard.get("outcome") == "ok", f"A's write was answered by {heard}")
    scene.look()
    b.holds()
    b.does("write")
    scene.look()
    b.does("leave")
