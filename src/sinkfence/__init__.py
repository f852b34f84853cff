"""Destinations that refuse a stale owner."""

from typing import TYPE_CHECKING, Any

from sinkfence.errors import (
    Conflict,
    GenerationConflict,
    GenerationExhausted,
    IdempotencyMismatch,
    JobCompleted,
    JobMismatch,
    LeaseHeld,
    LeaseLost,
    MissingToken,
    NotArmed,
    NotEnforced,
    OutcomeUnknown,
    SchemaMismatch,
    SinkfenceError,
    StaleToken,
)
from sinkfence.tokens import Token

if TYPE_CHECKING:
    from sinkfence.leases import Lease, Leases

__all__ = [
    "Conflict",
    "GenerationConflict",
    "GenerationExhausted",
    "IdempotencyMismatch",
    "JobCompleted",
    "JobMismatch",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Leases",
    "MissingToken",
    "NotArmed",
    "NotEnforced",
    "OutcomeUnknown",
    "SchemaMismatch",
    "SinkfenceError",
    "StaleToken",
    "Token",
]


def __getattr__(name: str) -> Any:
    # Python runs this file when a sink imports `sinkfence.tokens`, and a sink has no use for the leases.
    if name not in ("Lease", "Leases"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sinkfence import leases

    return getattr(leases, name)
