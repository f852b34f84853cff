"""What a doctor has found at a destination, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkfence.errors import NotEnforced

Grade = Literal["ok", "note", "weak", "broken", "unknown"]


def printable(text: str) -> str:
    """Return text that stays in its line, and does nothing to a terminal, nor to the order of what is read.

    What a destination's users have named may hold anything: line ends, escapes, the bidirectional controls.
    """
    return "".join(each if each.isprintable() or each == "\xa0" else ascii(each)[1:-1] for each in text)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, or tried."""

    name: str
    grade: Grade
    """`broken`: a stale owner may take effect; `unknown`: whether one may could not be found out; `weak`: the
    fence holds, but somebody other than the application can go round it, or something beside it does not
    work; `note` is of interest and no condition of anything."""
    says: str
    advice: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a doctor found, printable."""

    where: str
    findings: tuple[Finding, ...]

    @property
    def fenced(self) -> bool:
        """Whether something was looked at, and nothing of it is broken or unknown."""
        return bool(self.findings) and not any(each.grade in ("broken", "unknown") for each in self.findings)

    def holds(self, name: str) -> bool:
        """Whether there is a finding of this name, and all of that name are ok."""
        grades = {each.grade for each in self.findings if each.name == name}
        return grades == {"ok"}

    def check(self) -> None:
        """Do nothing if the destination is fenced.

        Raises:
            NotEnforced: it isn't, or it could not be found out; with this report.
        """
        if not self.fenced:
            raise NotEnforced(str(self))

    def __str__(self) -> str:
        lines = [printable(self.where)]
        for each in self.findings:
            lines.append(f"  {each.grade:8}{printable(each.name)}: {printable(each.says)}")
            if each.advice:
                lines.append(f"  {'':8}  -> {printable(each.advice)}")
        lines.append("fenced" if self.fenced else "NOT FENCED, or not shown to be")
        return "\n".join(lines)
