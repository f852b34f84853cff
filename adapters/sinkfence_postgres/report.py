"""What the doctor has found, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkfence.errors import NotEnforced

Grade = Literal["ok", "note", "weak", "broken", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    grade: Grade
    """`broken`: a stale owner may take effect; `weak`: it holds, until somebody or something goes round it;
    `note` is of interest and no condition of anything; `unknown` could not be found out."""
    says: str
    advice: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the doctor found, printable."""

    where: str
    findings: tuple[Finding, ...]

    @property
    def fenced(self) -> bool:
        """Whether nothing is broken, and nothing unknown."""
        return not any(each.grade in ("broken", "unknown") for each in self.findings)

    def check(self) -> None:
        """Do nothing if the database is fenced.

        Raises:
            NotEnforced: it isn't, or it could not be found out; with this report.
        """
        if not self.fenced:
            raise NotEnforced(str(self))

    def __str__(self) -> str:
        lines = [self.where]
        for each in self.findings:
            lines.append(f"  {each.grade:8}{each.name}: {each.says}")
            if each.advice:
                lines.append(f"  {'':8}  -> {each.advice}")
        return "\n".join(lines)
