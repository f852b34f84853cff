"""A run as a picture: one HTML page from a history and what the checker found in it.

Read `run` first (what there is to show), then `plan` (where), `picture` (how) and `page`. Nothing here reads
or writes a file but `write`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sinkfence_trials.checker import Violation
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.page import page

__all__ = ["page", "write"]


def write(path: Path, events: Iterable[Event], violations: Sequence[Violation], title: str) -> None:
    """Write a run's page, in place of whatever is there."""
    path.write_text(page(events, violations, title), encoding="utf-8")
