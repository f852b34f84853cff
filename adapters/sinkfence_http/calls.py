"""What a caller sends, and may make of each answer, whatever library sends it; no I/O.

`Fencing-Status` decides, not the status code alone and never the body: proxies replace bodies, and an
application has 412s of its own.

A library's shell begins a `Call`, asks it for the header, sends, and tells it what came of that: an answer
or an error. It is told to return the answer, or to wait and send once more, or the call raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

from sinkfence import observe
from sinkfence.errors import GenerationConflict, LeaseLost, NotEnforced, OutcomeUnknown, StaleToken
from sinkfence.sinks import Bearer, check_bearer
from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.functions import check_function

Sign = Callable[[Token], str]

ATTEMPTS: Final = 6
"""How often one call is sent at most."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds, the bounds of the random pauses between attempts: full jitter, doubling."""

_MAY_PASS: Final = frozenset({408, 425, 429})
# Said by the door before anything ran, or by a handler whose transaction was refused as a whole.
_NOTHING_RAN: Final = frozenset({"fence-unavailable", "previous-owner-in-flight", "request-in-progress"})
_UNKNOWN: Final = frozenset({"not-guarded", "outcome-unknown"})


class Caller:
    """One bearer's calls of one service."""

    def __init__(self, bearer: Bearer, sign: Sign | None) -> None:
        self.bearer: Bearer = check_bearer(bearer)
        self._sign = check_sign(sign)
        self._signed: tuple[Token, str] | None = None

    def begin(self, method: str, key: str | None, *, rewindable: bool, repeatable: bool = False) -> Call:
        """Begin a call, with its Idempotency-Key if it has one; with `repeatable` it needs none.

        Raises:
            ValueError: the key is malformed.
            LeaseLost: the bearer's lease is over.
        """
        if key is not None:
            wire.parse_idempotency_key(key)
        return Call(self, self.bearer.token, method, repeatable or key is not None, rewindable)

    def header(self, token: Token, *, anew: bool) -> str:
        """Return the value of Fencing-Token. A signed one is kept, so that a service can remember it."""
        if self._sign is None:
            return wire.format_token(token)
        if anew or self._signed is None or self._signed[0] != token:
            self._signed = token, self._sign(token)
        return self._signed[1]

    def left(self) -> float | None:
        """Return what remains of the lease in seconds, None without one."""
        remaining: Callable[[], float] | None = getattr(self.bearer, "remaining", None)
        return None if remaining is None else remaining()


@dataclass(slots=True)
class Call:
    """One logical call, over all its attempts."""

    caller: Caller
    token: Token
    method: str
    repeatable: bool
    """Whether the service may see it twice: it carries an idempotency key."""
    rewindable: bool
    """Whether its body can be sent again from the start."""
    chance: Callable[[], float] = field(default=random.random)
    """From 0 to 1: where in its range each pause lies."""
    attempts: int = 0
    unknown: bool = False
    """Whether an attempt may have been applied without our hearing of it."""
    expired: bool = False
    """Whether the signature was refused as expired, and must be made anew."""

    def attempt(self) -> str:
        """Begin an attempt, and return its Fencing-Token.

        Raises:
            LeaseLost: the lease is over, and nothing of this call was applied.
            OutcomeUnknown: it is over, and an attempt before may have been applied.
        """
        self.attempts += 1
        try:
            token = self.caller.bearer.token
        except LeaseLost as lost:
            if self.unknown:
                raise OutcomeUnknown(f"{self}: sent without an answer, and its lease is over") from lost
            raise
        try:
            # A body that can't be sent again leaves no second try after token-expired.
            return self.caller.header(token, anew=self.expired or not self.rewindable)
        except Exception as error:  # noqa: BLE001  # a signer has errors of its own
            raise self.stopped(error)  # noqa: B904  # which has its cause

    def stopped(self, error: Exception) -> Exception:
        """Return what an error that keeps the next attempt from being made must be told as."""
        if not self.unknown:
            return error
        unknown = OutcomeUnknown(
            f"{self}: sent without an answer, and can't be sent again ({error}): repeat with the same "
            "idempotency key, or read it back"
        )
        unknown.__cause__ = error
        return unknown

    def capped(self, seconds: float | None) -> float | None:
        """Return a timeout that doesn't go beyond the lease."""
        left = self.caller.left()
        if left is None:
            return seconds
        left = max(left, 0.001)
        return left if seconds is None else min(seconds, left)

    def answered(self, status: int, headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait before the next attempt, or None: the answer stands.

        `headers` is asked by the names' usual spelling.

        Raises:
            StaleToken, GenerationConflict: the service has seen a newer owner; the bearer was told.
            NotEnforced: a success by a service that knows nothing of fencing, or a redirect of the write.
            OutcomeUnknown: this attempt, or one before it, may have been applied.
        """
        if not 200 <= status <= 599:  # an interim answer, say: what became of the request isn't said
            return self.failed(ConnectionError(f"{status} is no answer"), sent=True)
        self._redirected(status)
        header = headers.get(wire.STATUS)
        fencing = wire.parse_status(header)
        word = fencing.word if fencing else None
        if fencing and word in ("stale-token", "generation-conflict"):
            kind = StaleToken if word == "stale-token" else GenerationConflict
            stale = kind(self.token, fencing.current, earlier_attempt_unknown=self.unknown or fencing.applied)
            observe.refuse("http", self.caller.bearer, stale)
            raise stale
        if fencing and (word in _UNKNOWN or fencing.applied):
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
        nothing_ran = word in _NOTHING_RAN or (header is None and status in _MAY_PASS)
        least = seconds_to_wait(headers.get("Retry-After"), headers.get("Date"))
        pause = self._again(status, word, least, nothing_ran)
        if pause is None and self.unknown:
            raise OutcomeUnknown(
                f"{self}: an attempt got no answer, and the last one was answered {status} ({word}): "
                "repeat with the same idempotency key, or read it back"
            )
        return pause

    def failed(self, error: Exception, *, sent: bool, hopeless: bool = False) -> float:
        """Return the seconds to wait before the next attempt, after one that got no answer.

        `hopeless` says that it was not sent, and that the next one would not be, either.

        Raises:
            OutcomeUnknown: it may have been applied, and can't be repeated (any more).
            Exception: the error itself, where nothing was ever sent.
        """
        self.unknown = self.unknown or sent
        # What never left us is safe to send again. What may have arrived is not, without a key: the first
        # may still be on its way, and its effect would come twice.
        if not hopeless and (not sent or (self.repeatable and self.rewindable)):
            pause = self._pause(0.0)
            if pause is not None:
                return pause
        if self.unknown:
            raise OutcomeUnknown(
                f"{self}: sent, and no answer came: repeat with the same idempotency key, or read it back"
            ) from error
        raise error

    def _redirected(self, status: int) -> None:
        """Refuse a redirect of the write itself, to wherever it may lead.

        307 and 308, and 301 for all but POST, repeat the method (RFC 9110, section 15.4). A transport doesn't
        know how far it is mounted: beyond, no token goes along, and the write would be performed unfenced.
        """
        if status in (307, 308) or (status == 301 and self.method != "POST"):
            kind = OutcomeUnknown if self.unknown else NotEnforced
            raise kind(
                f"{self}: answered {status}, which asks for the write again elsewhere, where no token may "
                "go along: call that address itself"
            )

    def _again(self, status: int, word: str | None, least: float, nothing_ran: bool) -> float | None:
        passing = status in _MAY_PASS or status >= 500 or word == "request-in-progress"
        if not (passing and self.rewindable and (nothing_ran or self.repeatable)):
            return None
        if status >= 500 and not nothing_ran:
            self.unknown = True
        return self._pause(least)

    def _pause(self, least: float) -> float | None:
        left = self.caller.left()
        bound = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.attempts - 1))
        pause = max(least, self.chance() * bound)
        over = self.attempts >= ATTEMPTS or pause > 60 or (left is not None and pause >= left)
        return None if over else pause

    def __str__(self) -> str:
        return f"a call of generation {self.token.generation} of job {self.token.job_id!r}"


def check_sign(sign: Sign | None) -> Sign | None:
    """Return what makes the header of a token.

    Raises:
        TypeError: it is no plain function.
    """
    if sign is not None:
        check_function("sign", sign)
    return sign


def seconds_to_wait(retry_after: str | None, date: str | None) -> float:
    """Return what a Retry-After asks for, 0 where it doesn't say (RFC 9110, section 10.2.3).

    A moment is compared with the answer's own Date: the clock here may be another.
    """
    value = retry_after or ""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(date or "")
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return max(wait.total_seconds(), 0.0)


def carried(error: Exception, kind: type[Any], attempt: Any) -> Any:
    """Return the answer to an attempt that an error carries, None if it carries none, or another request's.

    A hook or a transport that raises for a status has an answer: what that says counts, and not its error,
    which is one of the library's as those are that come for want of an answer.
    """
    answer: Any = getattr(error, "response", None)
    if not isinstance(answer, kind):
        return None
    try:
        answered: Any = answer.request
    except RuntimeError:  # of httpx: it was never told
        return None
    # A hook may ask others, for a login say.
    of_attempt = answered and (answered.method, answered.url) == (attempt.method, attempt.url)
    return answer if of_attempt else None
