"""What lasts in a run: who held which job from when until when, and which fault was on."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from sinkfence_trials.history import Event
from sinkfence_trials.timeline.run import STORE, Fault, Hold

OF_THE_STORE: Final = ("acquire", "renew", "complete", "release")
ENDED: Final[dict[str, Literal["completed", "released"]]] = {"complete": "completed", "release": "released"}


def holds(events: list[Event], worker: Callable[[Event], str]) -> list[Hold]:
    """Find the holds of all jobs; `worker` says whose an event is."""
    clock = _StoreClock(events)
    found: dict[tuple[str, int, str], Hold] = {}
    for event in events:
        if event.f not in OF_THE_STORE or event.type != "ok" or "now" not in event.value:
            continue
        generation, value = event.generation or 0, event.value
        key = event.job, generation, str(value.get("owner"))
        now = clock.here(value["now"], event.t)
        until = clock.here(value.get("until", value["now"]), event.t)
        if event.f == "acquire":
            found[key] = Hold(event.job, generation, worker(event), now, until)
        elif (hold := found.get(key)) is None or hold.how != "ran out":
            continue
        elif event.f == "renew":
            found[key] = replace(hold, end=until)
        elif now < hold.end:  # else it had run out before
            found[key] = replace(hold, end=now, how=ENDED[event.f])
    return list(found.values())


def faults(events: list[Event], end: float) -> list[Fault]:
    """Find the faults of a run that ended at `end`."""
    begun: dict[tuple[str, str], float] = {}
    found: list[Fault] = []
    for event in events:
        if event.f not in ("fault", "failover"):
            continue
        kind = str(event.value.get("kind", event.f))
        target = str(event.value.get("target") or (STORE if event.f == "failover" else event.p))
        if event.type == "invoke":
            begun[kind, target] = event.t
        else:
            since = begun.pop((kind, target), None)
            found.append(Fault(target, kind, event.t if since is None else since, since and event.t))
    # What did not end lasted until the end; a kill has none.
    found += [
        Fault(target, kind, since, None if kind == "kill" else end) for (kind, target), since in begun.items()
    ]
    return sorted(found, key=lambda fault: fault.begin)


class _StoreClock:
    """Translates the store's instants. After a failover another store counts, by another clock."""

    def __init__(self, events: list[Event]) -> None:
        self._failovers = [event.t for event in events if (event.f, event.type) == ("failover", "ok")]
        heard: defaultdict[int, list[float]] = defaultdict(list)
        for event in events:
            if "now" in event.value:
                heard[self._life(event.t)].append(event.t - event.value["now"])
        # An answer is heard late, and now and then late by much; an observer that was cut off tells early. So
        # neither the least is right nor the middle, but what lies between them.
        self._offsets = {life: sorted(offsets)[len(offsets) // 4] for life, offsets in heard.items()}

    def here(self, instant: float, answered: float) -> float:
        """Return when it was that instant of the store's, given when the store said so."""
        return instant + self._offsets[self._life(answered)]

    def _life(self, answered: float) -> int:
        return bisect_right(self._failovers, answered)
