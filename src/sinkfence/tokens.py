"""What a worker shows to a destination: whose turn it is, as a number."""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from dataclasses import dataclass
from typing import Final

MAX_GENERATION: Final = 999_999_999_999_999
"""The last generation, 10^15 - 1: the limit of an Integer in HTTP structured fields (RFC 9651,
section 3.3.1), exact in a double, and well inside BIGINT."""

MAX_TEXT_BYTES: Final = 200
"""How long a job_id, an owner or a step may be, in UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class Token:
    """One owner's turn at a job: the fencing token.

    Generations order the owners of *one* job; those of different jobs say nothing about each other.
    Any strictly increasing counter can issue tokens, as long as each job has one counter and each
    acquisition an owner value of its own.

    Raises:
        TypeError: a field is of another type (a bool or a float is no generation).
        ValueError: a field is empty, too long, holds control characters, or is out of range.
    """

    job_id: str
    """What must have one writer at a time: 1 to 200 UTF-8 bytes, no control characters, compared bytewise."""
    generation: int
    """1 to 10^15 - 1; strictly increasing per job, never reset, never reused."""
    owner: str
    """Who holds it, unique per acquisition: 1 to 200 UTF-8 bytes, no control characters."""

    def __post_init__(self) -> None:
        check_generation(self.generation)
        for name in ("job_id", "owner"):
            object.__setattr__(self, name, check_text(name, getattr(self, name)))

    @property
    def token(self) -> Token:
        """The token itself: a token is a bearer."""
        return self

    def lose(self, reason: object) -> None:
        """Do nothing: a bare token has no lease that could hear of a refusal."""

    def key(self, step: str) -> str:
        """Return the idempotency key of a step of this job.

        See `idempotency_key`: a new owner of the job derives the same key for the same step.
        """
        return idempotency_key(self.job_id, step)


def label(owner: str) -> str:
    """Return what of an owner value may be shown to anybody: all before its random bits."""
    return owner.rpartition(":")[0] or owner


def idempotency_key(job_id: str, step: str) -> str:
    """Return `sf1-` and the base64url SHA-256 of the length-prefixed job_id and step (47 characters).

    Neither generation nor owner is in it, so that a new owner repeats a step under the same key.
    Where a job comes back, the step names the occasion (`render 2026-05-01`).

    Raises:
        TypeError, ValueError: job_id or step is not 1 to 200 UTF-8 bytes without control characters.
    """
    digest = hashlib.sha256()
    for part in (check_job_id(job_id), check_text("step", step)):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return "sf1-" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def check_job_id(job_id: object) -> str:
    """Return job_id, or raise TypeError or ValueError saying what is wrong with it."""
    return check_text("job_id", job_id)


def check_generation(generation: object) -> int:
    """Return generation, or raise TypeError or ValueError saying what is wrong with it."""
    if type(generation) is not int:  # a bool is an int, and True is no generation
        raise TypeError(f"generation must be an int, not {type(generation).__name__}")
    if not 1 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation must be from 1 to {MAX_GENERATION}")
    return generation


def parse_generation(text: str) -> int:
    """Read a generation as strictly as it is written: 1 to 15 ASCII digits, no sign, no leading zero.

    `int()` alone is too kind: it takes "+10", "1_0", " 10" and digits of other scripts.

    Raises:
        TypeError: not a str.
        ValueError: anything else. The text is not echoed: it may come from a stranger.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a generation is parsed from a str, not from {type(text).__name__}")
    if not (1 <= len(text) <= 15 and text.isascii() and text.isdigit() and text[0] != "0"):
        raise ValueError("a generation is written as 1 to 15 digits without sign or leading zero")
    return int(text)


def check_text(name: str, value: object) -> str:
    """Return value as a plain str if it is 1 to 200 UTF-8 bytes without control characters, else raise.

    Control characters are refused because destinations keep these texts in line-based settings,
    headers and logs, where a newline would forge an entry.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    # A member of a `class Job(str, Enum)` equals its value, and drivers and f-strings write its name.
    value = str.__str__(value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half of a surrogate pair and has no UTF-8 form") from None
    if not 1 <= size <= MAX_TEXT_BYTES:
        raise ValueError(f"{name} must be 1 to {MAX_TEXT_BYTES} UTF-8 bytes long, this one has {size}")
    if not value.isprintable() and any(unicodedata.category(character) == "Cc" for character in value):
        raise ValueError(f"{name} must not hold control characters")
    return value
