"""What the door says in its own name: refusals as problem+json (RFC 9457), and `armed`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from sinkfence.errors import (
    REFERENCE,
    GenerationConflict,
    IdempotencyMismatch,
    JobMismatch,
    NotArmed,
    OutcomeUnknown,
    StaleToken,
)
from sinkfence_http import wire

PROBLEMS: Final = REFERENCE + "http-wire.html#"
"""Where the problem types are described: a `type` is this and the slug."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the door: of what the sender wrote only the number is in it, once it is authentic."""

    status: int
    slug: str
    title: str = ""
    retry_after: int | None = None
    """Seconds, where repeating the request may help."""
    presented: int | None = None
    current: int | None = None
    """The mark, for a sender that has proved who it is."""
    applied: bool = False
    """Whether something of the request was committed before it was refused, or may have been."""

    @property
    def body(self) -> bytes:
        """The problem document; nothing for an answer without a title."""
        if not self.title:
            return b""
        problem: dict[str, object] = {
            "type": PROBLEMS + self.slug,
            "title": self.title,
            "status": self.status,
        }
        for name in ("presented", "current"):
            if (number := getattr(self, name)) is not None:
                problem[name] = number
        if self.applied:
            problem["applied"] = True
        return json.dumps(problem).encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers, those that belong to the body included."""
        headers = [
            (wire.STATUS, wire.format_status(wire.Status(self.slug, self.current, self.applied))),
            ("Cache-Control", "no-store"),
        ]
        if self.title:
            headers += [("Content-Type", "application/problem+json"), ("Content-Length", str(len(self.body)))]
        if self.retry_after is not None:
            headers.append(("Retry-After", str(self.retry_after)))
        return headers


ACCEPTED: Final = "accepted"
"""The word on an answer of the service itself: its request carried an authentic token that was not stale."""
ARMED: Final = Answer(204, "armed")

TOKEN_REQUIRED: Final = Answer(428, "token-required", "A write here must carry exactly one Fencing-Token")
MALFORMED: Final = Answer(400, "malformed-token", "The Fencing-Token is not one well-formed member")
UNAUTHENTIC: Final = Answer(
    403, "unauthentic-token", "The Fencing-Token was not issued by anyone trusted here"
)
EXPIRED: Final = Answer(412, "token-expired", "The signature of the Fencing-Token has expired: sign it anew")
MISMATCH: Final = Answer(403, "job-mismatch", "The Fencing-Token is for another job than this request")
STALE: Final = Answer(412, "stale-token", "A newer owner of this job has been seen here: stop")
CONFLICT: Final = Answer(
    412, "generation-conflict", "This generation is known here under another owner: stop"
)
UNAVAILABLE: Final = Answer(503, "fence-unavailable", "The fence can't be asked at present", retry_after=1)
NOT_GUARDED: Final = Answer(500, "not-guarded", "The service answered without the check of its destination")
IN_FLIGHT: Final = Answer(
    503, "previous-owner-in-flight", "A request of an earlier owner is still being served", retry_after=1
)
KEY_REQUIRED: Final = Answer(
    400, "idempotency-key-required", "The Idempotency-Key is not one value of 1 to 255 printable characters"
)
KEY_REUSED: Final = Answer(
    422, "idempotency-key-reused", "This Idempotency-Key was used before, for another request"
)
IN_PROGRESS: Final = Answer(
    409, "request-in-progress", "The request with this Idempotency-Key is being served", retry_after=1
)
NOT_KEPT: Final = Answer(
    409, "answer-not-kept", "This request was answered before, at a length that is not kept: it is done"
)
DIGEST_REQUIRED: Final = Answer(
    413, "content-digest-required", "A body of this length needs a Content-Digest by sha-256 to be repeatable"
)
INCOMPLETE: Final = Answer(400, "body-incomplete", "The body has ended early, and nothing was run")
OUTCOME_UNKNOWN: Final = Answer(409, "outcome-unknown", "Whether this request took effect is not known")


class Refused(Exception):
    """The door refuses a request before anything has looked at its job.

    It carries the client's answer to the middleware. It is no `SinkfenceError`: those tell a worker what to
    do next. A `Verifier` of your own raises it with `UNAUTHENTIC` or `EXPIRED` of this module.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer

    def __str__(self) -> str:
        return self.answer.slug


def refusal_of(error: BaseException) -> Answer | None:
    """Return the answer that an error stands for, or None where it is not a refusal."""
    match error:
        case Refused():
            return error.answer
        case StaleToken():
            kind = CONFLICT if isinstance(error, GenerationConflict) else STALE
            return replace(kind, presented=error.token.generation, current=error.mark)
        case JobMismatch():
            return MISMATCH
        case NotArmed():  # the mark went back after the door had armed it: fails closed, and heals by arming
            return UNAVAILABLE
        case OutcomeUnknown():
            return OUTCOME_UNKNOWN
        case IdempotencyMismatch():
            return KEY_REUSED
        case _:
            return None
