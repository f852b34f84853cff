"""An effect that is held on its way until its sender has a successor: the sender stopped, or dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final, Literal

from sinkfence_trials.demo.process import PATIENCE
from sinkfence_trials.torture.proxy import FaultProxy
from sinkfence_trials.torture.run import NotRun
from sinkfence_trials.torture.scenarios.actor import Actor
from sinkfence_trials.torture.scenarios.network import address, by_way_of, hold_next, was_answered
from sinkfence_trials.torture.scenarios.scene import Scene, took_place
from sinkfence_trials.torture.stops import Stop

OPEN: Final = """
    SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = %s AND state = 'idle in transaction'"""

GONE: Final = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s"

To = Literal["postgres", "s3", "http"]


def stopped(to: To) -> Callable[[Scene], None]:
    """The sender is stopped (SIGSTOP) while its request is under way, and goes on after the takeover."""

    def play(scene: Scene) -> None:
        a, b, network = cast_for(scene, to)
        stop = under_way(scene, a, network, to)
        a.process.stop()
        generation = takes_over(scene, b)
        stop.release()
        a.process.go_on()
        heard = a.hear("write")
        scene.expect(heard.get("error") == "StaleToken", f"the late write was answered by {heard}")
        scene.expect(heard.get("mark") == generation, f"another mark was told: {heard}")
        left = a.does("leave")
        scene.expect(left.get("error") == "LeaseLost", f"A was not told of its loss: {left}")
        scene.ends(b)

    return play


def dead(to: To) -> Callable[[Scene], None]:
    """The sender is killed while its request is under way; it is delivered after the takeover."""

    def play(scene: Scene) -> None:
        a, b, network = cast_for(scene, to)
        stop = under_way(scene, a, network, to)
        a.process.kill()
        takes_over(scene, b)
        stop.release()
        if to == "http":
            # Its answer finds nobody: the service itself tells of it, after those of A's and B's before.
            assert scene.service is not None
            status = [scene.service.answer() for _ in range(4)][-1]
            scene.expect(status == 412, f"the dead one's request was answered by {status}")
        else:
            took_place(was_answered(network, stop.place), "the dead one's request was not answered")
        if to == "postgres":
            scene.wait_for("A's session is over", GONE, a.name)
        scene.ends(b)

    return play


def cast_for(scene: Scene, to: To) -> tuple[Actor, Actor, FaultProxy]:
    """Start A, who has a network in its way, and B, who has not."""
    bucket, b = scene.run.places.bucket, "worker B"
    if to == "postgres":
        network = scene.proxy(scene.dsn)
        return scene.actor("worker A", ledger=by_way_of(scene.dsn, network)), scene.actor(b), network
    if to == "http":
        url = scene.start_service()
        network = scene.proxy(url)
        return scene.actor("worker A", to, service=address(network)), scene.actor(b, to, service=url), network
    if not (bucket.endpoint or "").startswith("http://"):
        raise NotRun("what goes to a bucket by https cannot be held by this network")
    scene.observer.look_at(bucket)
    network = scene.proxy(bucket.endpoint or "")
    way = asdict(replace(bucket, endpoint=address(network)))
    return scene.actor("worker A", to, bucket=way), scene.actor(b, to), network


def under_way(scene: Scene, a: Actor, network: FaultProxy, to: To) -> Stop:
    """Return when A has sent what would be its third effect, and all of it is held."""
    a.holds()

    def write() -> None:
        a.does("write")
        scene.look()  # an object shows only its last write

    stop = hold_next(network, write, "request")
    a.order("write")
    stop.wait(PATIENCE)
    a.wait_until_it_waits()
    if to == "postgres":
        scene.wait_for("A's transaction is open, its COMMIT under way", OPEN, a.name)
    return stop


def takes_over(scene: Scene, b: Actor) -> int:
    """Let B have the job when A's lease has run out, and write; return its generation."""
    before = len(scene.look())
    generation = b.holds()
    wrote = b.does("write")
    scene.expect(wrote["outcome"] == "ok", f"the successor's write was answered by {wrote}")
    took_place(len(scene.look()) > before, "the successor's write is not there")
    return generation
