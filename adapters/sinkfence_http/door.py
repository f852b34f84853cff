"""What happens at the door, whatever kind of server stands before it; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from sinkfence import observe
from sinkfence.errors import NotArmed, OutcomeUnknown
from sinkfence.marks import Mark, admit
from sinkfence.sinks import AsyncClaim, Claim
from sinkfence.tokens import Token
from sinkfence_http.answers import (
    IN_PROGRESS,
    KEY_REQUIRED,
    KEY_REUSED,
    MALFORMED,
    NOT_KEPT,
    OUTCOME_UNKNOWN,
    TOKEN_REQUIRED,
    UNAVAILABLE,
    Answer,
    Refused,
    refusal_of,
)
from sinkfence_http.records import Kept
from sinkfence_http.verifiers import Verifier
from sinkfence_http.wire import parse_idempotency_key

log: Final = logging.getLogger("sinkfence.http")


def present(values: Sequence[str], verifier: Verifier) -> Token:
    """Return the token that a request presents.

    Raises:
        Refused: none, more than one, malformed, unauthentic, or expired.
    """
    if not values:
        raise Refused(TOKEN_REQUIRED)
    if len(values) > 1:
        raise Refused(MALFORMED)
    try:
        return verifier.verify(values[0])
    except ValueError:
        raise Refused(MALFORMED) from None


def recognise(token: Token, mark: Mark | None) -> None:
    """Refuse a token by a mark that it must not raise.

    Raises:
        NotArmed: it would; StaleToken, GenerationConflict: as `admit`.
    """
    if mark is None or mark.generation < token.generation:
        raise NotArmed(token, None if mark is None else mark.generation)
    admit(token, mark)


def idempotency_key(values: Sequence[str]) -> str | None:
    """Return the key that a request carries, None if there is none.

    Raises:
        Refused: more than one, or malformed.
    """
    if not values:
        return None
    try:
        (value,) = values
        return parse_idempotency_key(value)
    except ValueError:
        raise Refused(KEY_REQUIRED) from None


def recorded_answer(claim: Claim | AsyncClaim) -> Answer | Kept | None:
    """Return what a claim's record says to its request, None if the request is to be run."""
    match claim.state:
        case "run":
            return None
        case "answered":
            kept = Kept.read(claim.answer or "")
            return NOT_KEPT if kept.body is None else kept
        case "reused":
            return KEY_REUSED
        case "in-progress":
            return IN_PROGRESS
        case "unknown":
            return OUTCOME_UNKNOWN


def turn_away(error: Exception) -> Answer:
    """Return the answer to a request that doesn't get in; what is no refusal is logged, and fails closed."""
    observe.refused("http", error)
    # OutcomeUnknown is of the mark here: whether it rose isn't known, and of the request nothing has run.
    answer = None if isinstance(error, OutcomeUnknown) else refusal_of(error)
    if answer is None:
        log.error("the fence can't be asked, and requests are refused", exc_info=error)
        return UNAVAILABLE
    return answer


def log_unkept(token: Token) -> None:
    """Log, inside an except clause, that an answer goes out though its repetitions won't get it."""
    log.error("the answer to a request of job %r could not be kept", token.job_id, exc_info=True)
