"""One fenced write, from the state that was read to an outcome that is known."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from botocore.exceptions import ClientError

from sinkfence.errors import Conflict, LeaseLost, OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.tokens import Bearer, Token
from sinkfence_s3.plan import Done, Fate, Seen, Send, check, fate, superseded
from sinkfence_s3.register import MAX_FRAME, Entry, decode, encode, not_a_register
from sinkfence_s3.store import Exchange, no_answer, settled, status, worth_repeating

ROUNDS: Final = 32
"""How many other writes of the same owner may come first before a put gives up."""
SENDINGS: Final = 4
"""How often the very same request is sent while the state shows that it wasn't applied yet."""
READINGS: Final = 3
CONTENT_TYPE: Final = "application/vnd.sinkfence.register"

T = TypeVar("T")
Decide = Callable[[Token, Seen | None, str], Send | Done]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known after a write."""

    entry: Entry
    """The write that did it; an earlier one if this call repeats it."""
    etag: str | None
    """The register's, as that write left it, where it is still known."""
    repeated: bool
    seen: Seen
    """The last state that was seen."""
    superseded: bool


def look(exchange: Exchange) -> Seen | None:
    """Read the register, or None if there is nothing at the key.

    Raises:
        SchemaMismatch: something else is there.
    """
    stored = exchange.read(MAX_FRAME)
    if stored is None:
        return None
    if stored.size > MAX_FRAME:
        not_a_register(exchange.key, f"it has {stored.size} bytes or more")
    return Seen(decode(stored.data, exchange.key), stored.etag)


def write(exchange: Exchange, bearer: Bearer, decide: Decide, kept: Seen | None) -> Outcome:
    """Decide and send until the outcome is known; `kept` is the state this owner left here, if any.

    Raises:
        what `decide` raises; OutcomeUnknown; Conflict after ROUNDS lost races.
    """
    seen, fresh = (look(exchange), True) if kept is None else (kept, False)
    for turn in range(ROUNDS):
        token = bearer.token
        step: Send | Done | None = None
        try:
            step = decide(token, seen, secrets.token_hex(16))
        except SinkfenceError:
            if fresh:
                raise
        if not fresh and not isinstance(step, Send):
            # Only a sending may be decided from a kept state, for S3 checks it. Any other answer would be
            # this process's memory against what a newer owner may have done since.
            seen, fresh = look(exchange), True
            continue
        if isinstance(step, Done):
            assert seen is not None
            return Outcome(step.entry, _etag(step.entry, seen), True, seen, False)
        assert step is not None
        outcome = _settle(exchange, bearer, step)
        if isinstance(outcome, Outcome):
            return outcome
        seen, fresh = outcome.seen, True
        if turn:
            pause(turn)
    raise Conflict(
        f"other writers of this owner came first {ROUNDS} times: let one thread write {exchange.key!r}"
    )


@dataclass(frozen=True, slots=True)
class _Overtaken:
    seen: Seen | None


def _settle(exchange: Exchange, bearer: Bearer, send: Send) -> Outcome | _Overtaken:
    """Send one request, again if need be, until it is known to be applied or known never to be.

    Sending it again is safe however many of its copies are still under way: all carry one condition, and
    whichever is applied first makes it false for the others.
    """
    frame = encode(send.register)
    base = None if send.base is None else send.base.etag
    own, done = send.register.last, send.repeats or send.register.last
    in_doubt = False
    error: Exception | None = None
    for turn in range(SENDINGS):
        token = _token(bearer, in_doubt)  # looked at again: minutes may have passed in retries
        try:
            etag = exchange.write(frame, base, ContentType=CONTENT_TYPE)
            if etag is not None:
                seen = Seen(send.register, etag)
                return Outcome(done, _etag(done, seen), done is not own, seen, False)
            in_doubt = True
        except Exception as failure:
            if settled(failure) and not worth_repeating(failure) and not in_doubt:
                raise
            error = failure
            in_doubt = in_doubt or not settled(failure)
        there = read_back(partial(look, exchange), exchange.key, in_doubt)
        match fate(send, there):
            case Fate.APPLIED:
                assert there is not None
                late = superseded(send, there)
                return Outcome(done, _etag(done, there), done is not own, there, late)
            case Fate.OVERTAKEN:
                return _Overtaken(there)
            case Fate.UNKNOWN | Fate.UPROOTED as lost:
                # Every sending was answered, and each with a refusal: nothing of it can have been applied.
                if not in_doubt:
                    return _Overtaken(there)
                _give_up(bearer, token, there, lost, exchange.key)
            case Fate.NOT_YET:
                # Refused although the state is the one it asks for: some stores compare the ETag without
                # its quotes. Both forms name the same version, so trying the other one is harmless.
                if error is not None and isinstance(error, ClientError) and status(error) == 412 and base:
                    exchange.store.bare = not exchange.store.bare
        pause(turn)
    if not in_doubt and error is not None:
        raise error
    raise OutcomeUnknown(
        f"{exchange.key!r} was not written so far, but a request without an answer may still arrive: "
        "repeat it under the same step"
    ) from error


def _token(bearer: Bearer, in_doubt: bool) -> Token:
    try:
        return bearer.token
    except LeaseLost as lost:
        if in_doubt:
            raise OutcomeUnknown("the lease ended while a request without an answer was under way") from lost
        raise


def read_back(read: Callable[[], T], key: str, in_doubt: bool) -> T:
    """Read what stands at a key after a request failed, and again if reading fails in passing.

    Raises:
        OutcomeUnknown: the request may have been applied. Otherwise the reading's own error.
    """
    for turn in range(READINGS):
        try:
            return read()
        except Exception as failure:
            passing = no_answer(failure) or (isinstance(failure, ClientError) and status(failure) >= 500)
            if passing and turn + 1 < READINGS:
                pause(turn)
                continue
            if not in_doubt:
                raise
            raise OutcomeUnknown(f"{key!r} was sent, and cannot be read back: {failure}") from failure
    raise AssertionError("unreachable")


def _give_up(bearer: Bearer, token: Token, seen: Seen | None, lost: Fate, key: str) -> None:
    stale: StaleToken | None = None
    try:
        check(token, seen)
    except StaleToken as refusal:
        stale = type(refusal)(token, refusal.mark, earlier_attempt_unknown=True)
    if lost is Fate.UPROOTED:
        if stale is not None:
            raise stale
        raise OutcomeUnknown(f"{key!r} was removed or restored by other means while a write was under way")
    if stale is not None:
        bearer.lose(stale)
    raise OutcomeUnknown(
        f"{key!r} was sent without an answer, and its register has forgotten writes that old"
    )


def _etag(entry: Entry, seen: Seen) -> str | None:
    """Return the ETag that a write left, if it is the last write or the one before."""
    last = seen.register.last.seq
    return seen.etag if entry.seq == last else seen.register.previous_etag if entry.seq == last - 1 else None


def pause(turn: int) -> None:
    """Wait a random time, at most 20 ms in the first turn, doubled each turn up to half a second."""
    time.sleep(min(0.02 * 2**turn, 0.5) * secrets.randbelow(1000) / 1000)
