"""One run: its folder, its seed, its places; and what a part says that cannot run here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sinkfence_trials.history import History
from sinkfence_trials.torture.nursery import Nursery
from sinkfence_trials.torture.places import Places

TTL: Final = 1.0
"""Seconds of a lease: short, for much depends on its running out."""


class NotRun(Exception):
    """This part cannot run here; the message says why. It is reported as not run, never as passed."""


@dataclass(frozen=True, slots=True)
class Run:
    """What every part of a run is given."""

    folder: Path
    """Where its artefacts are kept: histories and logs."""
    seed: int
    """The same seed is the same schedule of faults, and not the same run: the machine has its say."""
    places: Places
    nursery: Nursery
    """Where its workers come from."""

    def history(self, process: str) -> History:
        """Open the history of one process, or of one thread that does one thing at a time."""
        return History(self.folder / f"{process.replace(' ', '-')}.jsonl", process)

    def histories(self) -> list[Path]:
        """What has been written down so far, one file per process."""
        return sorted(self.folder.glob("*.jsonl"))
