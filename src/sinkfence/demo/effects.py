"""The four effects of a worker: what is sent last, who decides, and how a stale owner's is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sinkfence.demo.outcome import Outcome

OLD: Final = 7
"""Worker A's generation: the job has had six owners before."""
NEW: Final = OLD + 1
"""Worker B's generation."""


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
        Outcome("StaleToken", OLD, NEW, f"status 412, stale-token;current={NEW}"),
    ),
    "completion": Effect(
        "completion",
        "the lease store",
        "record",
        Outcome("LeaseLost", OLD, None, f"the store has issued generation {NEW} since"),
    ),
}
