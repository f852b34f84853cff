"""64 processes that want one job at the same moment: each has it in its turn, and no number is left out."""

from __future__ import annotations

from typing import Final

from sinkfence_trials.torture.scenarios.scene import Scene, took_place

MANY: Final = 64


def acquirers(scene: Scene) -> None:
    """All have been refused before the holder leaves; then each has the job once, and writes."""
    holder = scene.actor("the holder", ttl=300.0)
    crowd = scene.actor("the crowd", program="crowd", many=MANY, ttl=300.0)
    first = holder.holds()
    holder.does("write")
    crowd.order("go")
    refused = [crowd.hear("asked").get("error") for _ in range(MANY)]
    took_place(refused == ["LeaseHeld"] * MANY, f"not all were refused: {refused}")
    holder.does("leave")
    done = [crowd.hear("done") for _ in range(MANY)]
    took_place(crowd.hear("over")["failed"] == 0, "some have ended early")
    numbers = sorted(event["generation"] for event in done)
    scene.expect(numbers == list(range(first + 1, first + 1 + MANY)), f"numbers were left out: {numbers}")
    scene.expect(all(event["outcome"] == "ok" for event in done), f"a rightful write was refused: {done}")
    scene.look()
