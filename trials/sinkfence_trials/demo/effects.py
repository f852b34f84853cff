"""The four effects of a worker: what is sent last, who decides, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from sinkfence import LeaseLost, StaleToken

OLD: Final = 7
"""Worker A's generation: the job has had six owners before."""
NEW: Final = OLD + 1
"""Worker B's generation."""


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
        if self.seen is None:
            return f"REFUSED: {self.answer}"
        return f"REFUSED: {self.presented} presented, {self.seen} seen ({self.answer})"


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect."""

    sent: str
    """What makes it an effect, once it arrives."""
    to: str
    """Who applies or refuses it."""
    place: str
    """Where it is to be found then."""
    refusal: Outcome
    """What its sender hears when it is stale."""


EFFECTS: Final = {
    "transaction": Effect("COMMIT", "PostgreSQL", "table", Outcome("StaleToken", OLD, NEW, "SQLSTATE SF001")),
    "upload": Effect("PUT", "S3", "object", Outcome("StaleToken", OLD, NEW, "status 412")),
    "request": Effect(
        "request",
        "the service",
        "charges",
        Outcome("StaleToken", OLD, NEW, f"412, stale-token;current={NEW}"),
    ),
    "completion": Effect(
        "completion",
        "the lease store",
        "record",
        Outcome("LeaseLost", OLD, None, f"the store has issued generation {NEW} since"),
    ),
}


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
