"""Destinations that refuse a stale owner."""

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
from sinkfence.leases import Leases
from sinkfence.leases.lease import Lease
from sinkfence.tokens import Token

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
