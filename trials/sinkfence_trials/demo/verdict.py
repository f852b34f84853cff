"""What has to be true of the story, and whether it was."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation."""

    what: str
    """As it has to be."""
    held: bool
    found: str = ""
    """What was there instead."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All expectations of a story, in the order in which they were looked at."""

    checks: list[Check] = field(default_factory=list[Check])

    def check(self, what: str, held: bool, found: object = "") -> None:
        """Record whether an expectation held."""
        self.checks.append(Check(what, held, "" if held else str(found)))

    @property
    def good(self) -> bool:
        """Whether there was something to expect, and all of it was as it has to be."""
        return bool(self.checks) and all(check.held for check in self.checks)
