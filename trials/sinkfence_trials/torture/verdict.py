"""What came of a run, read from its folder alone: now or years later, and without what it judges."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sinkfence_trials import timeline
from sinkfence_trials.checker import Violation, check
from sinkfence_trials.history import Event, read
from sinkfence_trials.torture.sometimes import Sometimes

FINE: Final = 0
BROKEN: Final = 1
INCONCLUSIVE: Final = 4

FILE: Final = "run.json"
PICTURE: Final = "timeline.html"


@dataclass(frozen=True, slots=True)
class About:
    """What a run was to do: kept beside its histories."""

    run: str
    seed: int
    kinds: tuple[str, ...] = ()
    """The faults that had to take place."""
    not_run: tuple[str, ...] = ()
    """What could not be done here, and why."""
    sabotage: str | None = None
    caught_by: str | None = None
    """With a sabotage: the invariant that has to be found broken."""
    scenario: str | None = None
    """Which one it was. What it asserts apart from the invariants is not in its history."""
    broken_off: str = ""
    """Why it did not come to its end, where it did not: then nobody looked at the truth after all else."""
    left: tuple[str, ...] = ()
    """What is still there on servers that are not ours."""

    def write(self, folder: Path) -> None:
        """Keep it."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> About:
        """Read it.

        Raises:
            ValueError: no run was kept there.
        """
        try:
            kept: dict[str, Any] = json.loads((folder / FILE).read_text())
        except FileNotFoundError:
            raise ValueError(f"{folder}: no run is kept there") from None
        for name in ("kinds", "not_run", "left"):
            kept[name] = tuple(kept[name])
        return cls(**kept)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    about: About
    events: list[Event]
    violations: list[Violation]
    sometimes: Sometimes

    @property
    def lacking(self) -> list[str]:
        """Why the run shows nothing: it was broken off, or something happened too rarely."""
        about = self.about
        broken_off = [f"broken off: {about.broken_off}"] if about.broken_off else []
        played = about.sabotage or about.scenario
        return broken_off + ([] if played else self.sometimes.lacking(about.kinds))

    @property
    def caught(self) -> bool:
        """Whether a sabotage was found out, by the invariant that is named for it."""
        return self.about.caught_by in {violation.invariant for violation in self.violations}

    @property
    def code(self) -> int:
        """The exit code. Of a sabotage it is to be caught that is fine."""
        if self.about.sabotage and (self.caught or not self.lacking):
            return FINE if self.caught else BROKEN
        if self.violations:
            return BROKEN
        return INCONCLUSIVE if self.lacking else FINE

    def draw(self, folder: Path) -> Path:
        """Write the run as a picture, and return where."""
        path, about = folder / PICTURE, self.about
        what = about.scenario or (f"sabotage {about.sabotage}" if about.sabotage else f"seed {about.seed}")
        timeline.write(path, self.events, self.violations, f"{about.run}: {what}")
        return path

    def lines(self) -> Iterable[str]:
        """Say it."""
        for violation in self.violations[:20]:
            yield f"{violation.invariant} {violation.job}: {violation.sentence}"
            yield f"    {violation.event.line()}"
        if len(self.violations) > 20:
            yield f"and {len(self.violations) - 20} more"
        if not self.about.scenario:
            yield from self.sometimes.lines()
        yield from (f"NOT RUN: {what}" for what in self.about.not_run)
        yield from (f"left behind: {what}" for what in self.about.left)
        yield self._conclusion()

    def _conclusion(self) -> str:
        about = self.about
        if about.sabotage and self.caught:
            return f"CAUGHT: {about.sabotage} by {about.caught_by}, as it has to be"
        if about.sabotage and not self.lacking:
            return f"NOT CAUGHT: {about.sabotage} had to be found out by {about.caught_by}"
        if self.violations:
            return f"BROKEN: {len(self.violations)} times"
        if self.lacking:
            return "INCONCLUSIVE: " + "; ".join(self.lacking)
        return "nothing was broken"


def judge(folder: Path) -> Verdict:
    """Check what a run has kept.

    Raises:
        ValueError: no run was kept there.
    """
    about = About.read(folder)
    events = list(read(sorted(folder.glob("*.jsonl"))))
    sometimes = Sometimes()
    sometimes.see(events)
    # Of what was broken off something may be there that the observer has not seen.
    unseen = ("D5", "L1") if about.broken_off else ()
    violations = [found for found in check(events) if found.invariant not in unseen]
    return Verdict(about, events, violations, sometimes)
