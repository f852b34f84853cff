"""The four effects of a worker: what is sent last, who decides, and what comes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sinkfence import LeaseLost, StaleToken

OLD: Final = 7
"""Worker A's generation: the job has had six owners before."""
NEW: Final = OLD + 1
"""Worker B's generation."""

ACCEPTED: Final = "ACCEPTED"
REFUSED: Final = "REFUSED"


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect."""

    sent: str
    """What makes it an effect, once it arrives."""
    to: str
    """Who applies or refuses it."""
    refusal: str
    """What becomes of it when it is stale: with what the destination itself said."""
    place: str
    """Where it is to be found."""
    untouched: str
    """What is there when worker A's late effect was refused."""
    damaged: str
    """And when it was accepted."""


SHOWN: Final = f"{REFUSED}: {OLD} presented, {NEW} seen"

EFFECTS: Final = {
    "transaction": Effect(
        "COMMIT",
        "PostgreSQL",
        f"{SHOWN} (SQLSTATE SF001)",
        "table",
        untouched="3 h at the new rate: 300",
        damaged="3 h at the old rate: 270, 3 h at the new rate: 300",  # billed twice
    ),
    "upload": Effect(
        "PUT",
        "S3",
        f"{SHOWN} (status 412)",
        "object",
        untouched="3 h at the new rate: 300",
        damaged="3 h at the old rate: 270",  # worker B's line is lost
    ),
    "request": Effect(
        "request",
        "the service",
        f"{SHOWN} (412, stale-token;current={NEW})",
        "charges",
        untouched="300 by worker B",
        damaged="270 by worker A, 300 by worker B",  # charged twice
    ),
    "completion": Effect(
        "completion",
        "the lease store",
        f"{REFUSED}: the store has issued generation {NEW} since",
        "record",
        untouched=f'done, generation {NEW}, {{"total": 300}}',
        damaged=f'done, generation {NEW}, {{"total": 270}}',  # worker A's result, as if it were worker B's
    ),
}


def outcome_of(call: Callable[[], None], answer: Callable[[Exception], str]) -> str:
    """Make an effect, and return what became of it; `answer` finds what the destination said to an error."""
    try:
        call()
    except StaleToken as stale:
        said = answer(stale)
        shown = f"{REFUSED}: {stale.token.generation} presented, {stale.mark} seen"
        return f"{shown} ({said})" if said else shown
    except LeaseLost as lost:
        return f"{REFUSED}: {lost.reason}"
    except Exception as error:  # noqa: BLE001 - no refusal; whatever it is, the story has to hear of it
        return f"FAILED: {type(error).__name__}: {error}"
    return ACCEPTED
