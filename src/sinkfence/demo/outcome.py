"""What became of one effect: applied, or refused, and then by whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sinkfence import LeaseLost, StaleToken


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker tells of an effect; it travels as JSON."""

    refusal: str | None = None
    """The error's name; None where the effect was applied."""
    presented: int | None = None
    """The generation that was shown."""
    seen: int | None = None
    """The newer generation that the destination had seen, where the error says so."""
    answer: str = ""
    """What the destination itself said: this is how one can tell that it was the destination."""

    def __str__(self) -> str:
        if self.refusal is None:
            return "ACCEPTED"
        if self.presented is None:
            return f"FAILED: {self.refusal}: {self.answer}"
        seen = "" if self.seen is None else f", {self.seen} seen"
        return f"REFUSED: {self.presented} presented{seen} ({self.answer})"


def outcome_of(call: Callable[[], None], answer: Callable[[Exception], str]) -> dict[str, Any]:
    """Make an effect, and return what became of it; `answer` finds what the destination said to an error."""
    try:
        call()
    except StaleToken as stale:
        outcome = Outcome("StaleToken", stale.token.generation, stale.mark, answer(stale))
    except LeaseLost as lost:
        outcome = Outcome("LeaseLost", lost.token.generation, None, lost.reason)
    except Exception as error:  # noqa: BLE001 - no refusal; whatever it is, the story has to hear of it
        outcome = Outcome(type(error).__name__, answer=str(error))
    else:
        outcome = Outcome()
    return asdict(outcome)
