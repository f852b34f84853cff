"""What came of a contract, promise by promise, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Result:
    """One promise, and whether it was kept."""

    promise: str
    """Its id, the invariant first: `D1 stale-refused`. It stays the same from version to version."""
    says: str
    outcome: Outcome
    why: str = ""
    """What was seen instead, or why it was not run."""

    def __str__(self) -> str:
        text = f"{self.outcome:<8} {self.promise}"
        if self.outcome == "failed":
            return f"{text}: {self.says}\n         {self.why}"
        return f"{text}: {self.why}" if self.why else text

    def check(self) -> None:
        """Raise AssertionError if the promise was broken; that it was not run says `outcome` alone."""
        if self.outcome == "failed":
            raise AssertionError(str(self))


@dataclass(frozen=True, slots=True)
class Report:
    """What a store or a sink has shown, and what it has not."""

    subject: str
    """What was exercised."""
    without: tuple[str, ...]
    """The capabilities that it does not claim, and what that means."""
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether something was tried, and nothing failed. What was not run has not passed: see `not_run`."""
        return bool(self.passed) and not self.failed

    @property
    def passed(self) -> tuple[Result, ...]:
        """The promises that were tried and kept."""
        return self._of("passed")

    @property
    def failed(self) -> tuple[Result, ...]:
        """The promises that were broken."""
        return self._of("failed")

    @property
    def not_run(self) -> tuple[Result, ...]:
        """The promises that could not be tried."""
        return self._of("not run")

    def check(self) -> None:
        """Raise AssertionError with the whole text, unless `ok`."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_run)} not run"
        lines = [f"{self.subject}: {counts}", *(f"without {claim}" for claim in self.without)]
        return "\n".join([*lines, *map(str, self.results)])

    def to_json(self) -> str:
        """Return the report as one JSON object: subject, ok, without, results."""
        results = [asdict(result) for result in self.results]
        return json.dumps(
            {"subject": self.subject, "ok": self.ok, "without": self.without, "results": results}
        )

    def _of(self, outcome: Outcome) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.outcome == outcome)
