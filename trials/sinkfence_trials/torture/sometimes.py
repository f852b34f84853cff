"""What has to happen *sometimes* for a run to mean anything: counted as it goes, and judged at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sinkfence_trials.history import Event

AT_LEAST: Final = {"takeovers": 3, "refusals": 1, "unknown outcomes": 1, "late renewals": 1}

STALE: Final = ("StaleToken", "GenerationConflict")


@dataclass(slots=True)
class Sometimes:
    """The counters of a run."""

    counts: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    """By kind: those that took place."""
    effects: Counter[str] = field(default_factory=Counter[str])
    """By sink."""
    _free: dict[str, bool] = field(default_factory=dict[str, bool])

    def see(self, events: Iterable[Event]) -> None:
        """Count what is new."""
        for event in events:
            if event.f in ("write", "arm") and "sink" in event.value:
                self.counts[f"refusals by {event.value['sink']}"] += 0  # told of, if it never refuses
            if event.f == "read":
                self.counts["refused reads"] += event.value.get("error") in STALE
            match event.f, event.type:
                case "acquire" | "release" | "complete", "ok" if event.p == "store":
                    if event.f == "acquire" and not self._free.get(event.job, True):
                        self.counts["takeovers"] += 1
                    self._free[event.job] = event.f != "acquire"
                case "write" | "arm", "fail" if event.value.get("error") in STALE:
                    self.counts["refusals"] += 1
                    self.counts[f"refusals by {event.value.get('sink')}"] += 1
                case "write" | "arm", "info":
                    self.counts["unknown outcomes"] += 1
                case "renew", "fail" if event.value.get("error") == "LeaseLost":
                    self.counts["late renewals"] += 1
                case "effect", _:
                    self.effects[event.value.get("sink", "")] += 1
                case "fault", "ok":
                    self.faults[event.value["kind"]] += 1
                case _:
                    pass

    def lacking(self, kinds: Iterable[str]) -> list[str]:
        """What happened too rarely, in words; none where the run counts."""
        return [
            f"{name}: {self.counts[name]} of at least {least}"
            for name, least in AT_LEAST.items()
            if self.counts[name] < least
        ] + [f"no fault of the kind {kind} took place" for kind in kinds if not self.faults[kind]]

    def lines(self) -> Iterable[str]:
        """Say all of it."""
        counters = {"effects": self.effects, "faults": self.faults, "sometimes": self.counts}
        for title, counter in counters.items():
            yield f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))

    def __str__(self) -> str:
        counted = [f"{name} {self.counts[name]}" for name in AT_LEAST]
        return ", ".join([f"effects {self.effects.total()}", *counted, f"faults {self.faults.total()}"])


class Tail:
    """Reads what has been added to the files of a folder since the last time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """Return the events that are new, in order."""
        found: list[Event] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += map(Event.read, whole.decode().splitlines())
        return sorted(found, key=lambda event: event.t)
