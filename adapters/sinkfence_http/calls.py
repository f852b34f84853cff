"""What a caller may make of each attempt of a fenced call, whatever library sends it; pure.

`Fencing-Status` decides, not the status code alone and never the body: proxies replace bodies, and an
application has 412s of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sinkfence.errors import GenerationConflict, NotEnforced, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_http import wire

ATTEMPTS: Final = 6
"""How often one call is sent at most."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds, the bounds of the random pauses between attempts: full jitter, doubling."""

_MAY_PASS: Final = frozenset({408, 425, 429})
# Said by the door before anything ran, or by a handler whose transaction was refused as a whole.
_NOTHING_RAN: Final = frozenset({"fence-unavailable", "previous-owner-in-flight", "request-in-progress"})
_UNKNOWN: Final = frozenset({"not-guarded", "outcome-unknown"})


@dataclass(slots=True)
class Call:
    """One logical call, over all its attempts."""

    token: Token
    repeatable: bool
    """Whether the service may see it twice: it carries an idempotency key."""
    rewindable: bool
    """Whether its body can be sent again from the start."""
    chance: Callable[[], float]
    """From 0 to 1: where in its range each pause lies."""
    attempts: int = 0
    unknown: bool = False
    """Whether an attempt may have been applied without our hearing of it."""
    expired: bool = False
    """Whether the signature was refused as expired, and must be made anew."""

    def answered(
        self, status: int, fencing_status: str | None, retry_after: str | None, left: float | None
    ) -> float | None:
        """Return the seconds to wait before the next attempt, or None: the answer stands.

        `left` is what remains of the lease in seconds, None without one.

        Raises:
            StaleToken, GenerationConflict: the service has seen a newer owner.
            NotEnforced: a success by a service that knows nothing of fencing.
            OutcomeUnknown: this attempt, or one before it, may have been applied.
        """
        said = wire.parse_status(fencing_status)
        word = said.word if said else None
        if said and word in ("stale-token", "generation-conflict"):
            kind = StaleToken if word == "stale-token" else GenerationConflict
            raise kind(self.token, said.current, earlier_attempt_unknown=self.unknown or said.applied)
        if word in _UNKNOWN:
            raise OutcomeUnknown(f"{self}: the service says {word}: its effect may stand. Read it back")
        if 200 <= status < 400:
            # A redirect answers a write that was performed just as a 200 does (RFC 9110, section 15.4.4).
            if word not in ("accepted", "armed"):
                raise NotEnforced(
                    f"{self}: answered {status} without Fencing-Status: this service ignores the token, or "
                    "a proxy strips its headers. It would have taken a stale owner's write as well"
                )
            return None
        if word == "token-expired" and self.rewindable and not self.expired:
            self.expired = True
            return 0.0
        nothing_ran = word in _NOTHING_RAN or (fencing_status is None and status in _MAY_PASS)
        pause = self._again(status, word, retry_after, left, nothing_ran)
        if pause is None and self.unknown:
            raise OutcomeUnknown(
                f"{self}: an attempt got no answer, and the last one was answered {status} ({word}): "
                "repeat with the same idempotency key, or read it back"
            )
        return pause

    def failed(self, error: Exception, left: float | None, *, sent: bool) -> float:
        """Return the seconds to wait before the next attempt, after one that got no answer.

        Raises:
            OutcomeUnknown: it may have been applied, and can't be repeated (any more).
            Exception: the error itself, where nothing was ever sent.
        """
        self.unknown = self.unknown or sent
        # What never left us is safe to send again. What may have arrived is not, without a key: the first
        # may still be on its way, and its effect would come twice.
        if not sent or (self.repeatable and self.rewindable):
            pause = self._pause(0.0, left)
            if pause is not None:
                return pause
        if self.unknown:
            raise OutcomeUnknown(
                f"{self}: sent, and no answer came: repeat with the same idempotency key, or read it back"
            ) from error
        raise error

    def redirected(self, method: str | None, status: int) -> None:
        """Refuse a redirect of the write itself, to wherever it may lead.

        307 and 308, and 301 for all but POST, repeat the method (RFC 9110, section 15.4). A transport doesn't
        know how far it is mounted: beyond, no token goes along, and the write would be performed unfenced.

        Raises:
            NotEnforced: this is one.
            OutcomeUnknown: and an attempt before it may have been applied.
        """
        if status in (307, 308) or (status == 301 and method != "POST"):
            kind = OutcomeUnknown if self.unknown else NotEnforced
            raise kind(
                f"{self}: answered {status}, which asks for the write again elsewhere, where no token may "
                "go along: call that address itself"
            )

    def _again(
        self, status: int, word: str | None, retry_after: str | None, left: float | None, nothing_ran: bool
    ) -> float | None:
        passing = status in _MAY_PASS or status >= 500 or word == "request-in-progress"
        if not (passing and self.rewindable and (nothing_ran or self.repeatable)):
            return None
        if status >= 500 and not nothing_ran:
            self.unknown = True
        asked = retry_after or ""
        return self._pause(float(asked) if asked.isascii() and asked.isdigit() else 0.0, left)

    def _pause(self, least: float, left: float | None) -> float | None:
        bound = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.attempts - 1))
        pause = max(least, self.chance() * bound)
        over = self.attempts >= ATTEMPTS or pause > 60 or (left is not None and pause >= left)
        return None if over else pause

    def __str__(self) -> str:
        return f"a call of generation {self.token.generation} of job {self.token.job_id!r}"
