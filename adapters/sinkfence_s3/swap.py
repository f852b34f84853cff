"""A known register, and the fenced write: from the state that was read to an outcome that is known."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from sinkfence import observe
from sinkfence.errors import Conflict, JobMismatch, LeaseLost, OutcomeUnknown, SinkfenceError, StaleToken
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token
from sinkfence_s3.delivery import deliver, pause, read_back
from sinkfence_s3.exchange import Bucket, Exchange
from sinkfence_s3.plan import Done, Fate, Seen, Send, check, fate, superseded
from sinkfence_s3.register import MAX_FRAME, Content, Entry, decode, encode, not_a_register

ROUNDS: Final = 32
"""How many other writes of the same owner may come first before a put gives up."""
CONTENT_TYPE: Final = "application/vnd.sinkfence.register"

Base = tuple[Seen | None]
"""A state to begin with; (None,) where it is known that nothing is at the key."""
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
    superseded: StaleToken | None
    """The refusal that the bearer has to hear, if a newer owner has come since."""
    replaced: Content | None = None
    """The content that was there before, if this write replaced it or took it away."""


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


class KnownRegister:
    """What is shared by all calls on one object: where its register is, and what the last write here left."""

    def __init__(self, bucket: Bucket, key: str, ensure_enforced: Callable[[], None]) -> None:
        self.bucket = bucket
        self.key = key
        self.ensure_enforced = ensure_enforced
        """Makes sure that the store enforces conditions; called before anything is sent."""
        self.remembered: Seen | None = None

    def exchange(self) -> Exchange:
        """Return what counts the requests of one call."""
        return Exchange(self.bucket, self.key)

    def write(
        self,
        exchange: Exchange,
        bearer: Bearer,
        decide: Decide,
        base: Base | None = None,
        *,
        act: str = "write",
    ) -> Outcome:
        """Decide and send until the outcome is known; the bearer is told if a newer owner has come.

        Begins with the state that this owner left here, else with `base`, else with what is read now.

        Raises as `FencedObject.put`: what `decide` raises, with nothing applied, and what sending may raise.
        """
        token = token_of(bearer)  # before anything is sent
        self.ensure_enforced()
        remembered = self.remembered
        # What another owner's write has left is most likely no longer the newest state.
        if remembered is not None and remembered.register.token == token:
            base = (remembered,)
        with observe.at("s3", act, token):
            try:
                outcome = _write(exchange, bearer, decide, base)
            except StaleToken as stale:
                observe.refuse("s3", bearer, stale)
                raise
        self.remembered = outcome.seen
        if outcome.superseded is not None:
            observe.refuse("s3", bearer, outcome.superseded)
        return outcome


def _write(exchange: Exchange, bearer: Bearer, decide: Decide, base: Base | None) -> Outcome:
    seen, fresh = (look(exchange), True) if base is None else (base[0], False)
    for turn in range(ROUNDS):
        token = bearer.token
        decision: Send | Done | None = None
        try:
            decision = decide(token, seen, secrets.token_hex(16))
        except SinkfenceError:
            if fresh:
                raise
        if not fresh and not isinstance(decision, Send):
            # From a remembered state only a sending may be decided, for S3 checks it. Any other answer would
            # be this process's memory against what a newer owner may have done since.
            seen, fresh = look(exchange), True
            continue
        if isinstance(decision, Done):
            assert seen is not None
            return Outcome(decision.entry, _etag(decision.entry, seen), True, seen, None)
        assert decision is not None
        outcome, seen = _carry_out(exchange, bearer, decision)
        if outcome is not None:
            return outcome
        fresh = True
        if turn:
            pause(turn)
    raise Conflict(
        f"other writers of this owner came first {ROUNDS} times: let one thread write {exchange.key!r}"
    )


def _carry_out(exchange: Exchange, bearer: Bearer, send: Send) -> tuple[Outcome | None, Seen | None]:
    """Send until the request is known to be applied, or (None) never to be; return what stands there too."""
    base = None if send.base is None else send.base.etag
    entry = send.repeats or send.register.last

    def judge(etag: str | None, in_doubt: bool) -> tuple[Outcome | None, Seen | None] | None:
        if etag is not None:
            return applied(Seen(send.register, etag))
        seen = read_back(partial(look, exchange), exchange.key, in_doubt)
        request_fate = fate(send, seen)
        if request_fate is Fate.APPLIED:
            assert seen is not None
            return applied(seen)
        if request_fate is Fate.NOT_YET:
            _still_ours(bearer, in_doubt)  # minutes may have passed in boto3's retries
            return None
        # Where every sending was refused at first hand, nothing was applied, whatever the ring remembers.
        if request_fate is Fate.OVERTAKEN or not in_doubt:
            return None, seen
        _give_up(bearer, send.register.token, seen, exchange.key)

    def applied(seen: Seen) -> tuple[Outcome, Seen]:
        before = None if send.base is None else send.base.register.content
        replaced = None if before is send.register.content else before
        refusal = superseded(send, seen)
        return Outcome(entry, _etag(entry, seen), send.repeats is not None, seen, refusal, replaced), seen

    return deliver(exchange, encode(send.register), base, judge, ContentType=CONTENT_TYPE)


def _still_ours(bearer: Bearer, in_doubt: bool) -> None:
    try:
        _ = bearer.token
    except LeaseLost as lost:
        if in_doubt:
            raise OutcomeUnknown(
                "the lease ended while a request without an answer was under way: read it back, or let the "
                "next owner repeat the step"
            ) from lost
        raise


def _give_up(bearer: Bearer, token: Token, seen: Seen | None, key: str) -> NoReturn:
    try:
        check(token, seen)
    except StaleToken as stale:
        observe.refuse("s3", bearer, type(stale)(token, stale.mark, earlier_attempt_unknown=True))
    except JobMismatch:
        pass  # another job began anew here, which says nothing of what became of ours
    raise OutcomeUnknown(
        f"{key!r} was sent without an answer, and its register has forgotten writes that old, or was removed "
        "or restored by other means: read it back"
    )


def _etag(entry: Entry, seen: Seen) -> str | None:
    """Return the ETag that a write left, if it is the last write or the one before."""
    last = seen.register.last.seq
    return seen.etag if entry.seq == last else seen.register.previous_etag if entry.seq == last - 1 else None
