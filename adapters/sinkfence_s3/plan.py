"""What to do next to a fenced object, decided from the state that was read: pure, without I/O.

S3 compares no generations; it can only test that the state is still the one that was read (`If-Match`, or
`If-None-Match: *` where nothing was there). So the rule is applied here, to that state, and S3 applies the
write to that very state or not at all. Together they are one atomic step, because no state comes twice:
each register's bytes, and with them its ETag, are unique.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from sinkfence.errors import Conflict, IdempotencyMismatch, JobMismatch, StaleToken
from sinkfence.marks import Mark, admit
from sinkfence.tokens import Token
from sinkfence_s3.register import MAX_SEQ, RING, Content, Entry, Register


@dataclass(frozen=True, slots=True)
class Seen:
    """A register as it was read, and the ETag under which it stood."""

    register: Register
    etag: str


@dataclass(frozen=True, slots=True)
class Send:
    """Write this register, if the key still holds `base` (or nothing, where base is None)."""

    register: Register
    base: Seen | None
    repeats: Entry | None = None
    """The write that the call repeats, where all that is left to do is to raise the mark."""

    @property
    def base_seq(self) -> int:
        """The number of the write that this one builds on; 0 where there was none."""
        return 0 if self.base is None else self.base.register.last.seq


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to send: an earlier write has done it."""

    entry: Entry
    """The one that did."""


def arm(token: Token, seen: Seen | None, write_id: str) -> Send | Done:
    """Raise the mark and leave the content as it is; on an absent key, make a register without content.

    That empty register is what a delayed create of an older owner then finds in its way.

    Raises:
        StaleToken, GenerationConflict, JobMismatch: as `check`.
    """
    mark = check(token, seen)
    if seen is not None and mark == seen.register.mark:
        return Done(seen.register.last)
    return _send(token, seen, write_id)


def put(
    token: Token, seen: Seen | None, write_id: str, wanted: Content, *, tag: str | None, expect: int | None
) -> Send | Done:
    """Replace the content: fence first, then the idempotency key, then what the caller expects to replace.

    In this order, because a stale owner must not be told "repeated", and because the repetition of a put
    that was applied finds its own content instead of what it expected.

    Raises:
        StaleToken, GenerationConflict, JobMismatch: as `check`.
        IdempotencyMismatch: this step put other content.
        Conflict: the content isn't that of write `expect`.
    """
    repetition = _repetition(token, seen, write_id, tag, wanted.sha256)
    if repetition is not None:
        return repetition
    _check_expected(seen, expect)
    return _send(token, seen, write_id, wanted, tag)


def delete(token: Token, seen: Seen | None, write_id: str, *, tag: str | None) -> Send | Done:
    """Take the content away and leave the register, for its mark and its ring: to readers nothing is there.

    Where nothing is there, it is an arming: what an older owner has under way must not appear afterwards.

    Raises:
        StaleToken, GenerationConflict, JobMismatch: as `check`.
        IdempotencyMismatch: this step put content.
    """
    repetition = _repetition(token, seen, write_id, tag, None)
    if repetition is not None:
        return repetition
    if tag is None and (seen is None or seen.register.content is None):
        return arm(token, seen, write_id)
    send = _send(token, seen, write_id, tag=tag)
    return replace(send, register=replace(send.register, content=None))


def foresee(token: Token, seen: Seen | None, *, tag: str | None, expect: int | None) -> bool:
    """Whether a put is a repetition, as far as can be told before its content is known.

    Raises:
        StaleToken, GenerationConflict, JobMismatch, Conflict: it will be refused, as things stand.
    """
    check(token, seen)
    if seen is not None and tag is not None and any(entry.tag == tag for entry in seen.register.ring):
        return True
    _check_expected(seen, expect)
    return False


def check(token: Token, seen: Seen | None) -> Mark:
    """Apply the rule to the state that was read.

    Raises:
        JobMismatch: the register belongs to another job.
        StaleToken, GenerationConflict: as `sinkfence.marks.admit`.
    """
    if seen is None:
        return admit(token, None)
    register = seen.register
    if register.token.job_id != token.job_id:
        raise JobMismatch(token, register.token.job_id)
    return admit(token, register.mark)


def _repetition(
    token: Token, seen: Seen | None, write_id: str, tag: str | None, digest: str | None
) -> Send | Done | None:
    """Apply the rule, then look for the idempotency key: None for a write that is new."""
    mark = check(token, seen)
    if seen is not None and tag is not None:
        for entry in seen.register.ring:
            if entry.tag != tag:
                continue
            if entry.digest != digest:
                raise IdempotencyMismatch(
                    f"this step of job {token.job_id!r} did something else here before (write {entry.seq}): "
                    "name the occasion in the step, or repeat it with the same content"
                )
            if mark == seen.register.mark:
                return Done(entry)
            # A repetition by a new owner still raises the mark: otherwise what the old owner has under
            # way would be accepted after the new one was told "done".
            return replace(_send(token, seen, write_id), repeats=entry)
    return None


def _check_expected(seen: Seen | None, expect: int | None) -> None:
    content = None if seen is None else seen.register.content
    if expect is not None and expect != (0 if content is None else content.seq):
        raise Conflict(
            f"the content was expected to be that of write {expect}, and is that of write "
            f"{0 if content is None else content.seq}: read again, then decide"
        )


def _send(
    token: Token, seen: Seen | None, write_id: str, wanted: Content | None = None, tag: str | None = None
) -> Send:
    old = None if seen is None else seen.register
    seq = 1 if old is None else old.last.seq + 1
    if seq > MAX_SEQ:
        raise Conflict(f"the register has taken {MAX_SEQ} writes and takes no more: go on under another name")
    content = None if old is None else old.content
    digest = None
    if wanted is not None:
        content, digest = Content(wanted.body, wanted.content_type, wanted.sha256, seq), wanted.sha256
    entry = Entry(seq, write_id, tag, token.generation, digest)
    register = Register(
        token=token,
        content=content,
        previous_etag=None if seen is None else seen.etag,
        ring=(*(() if old is None else old.ring), entry)[-RING:],
    )
    return Send(register, seen)


class Fate(Enum):
    """What became of a request, as the state read after it shows."""

    APPLIED = auto()
    NOT_YET = auto()
    """The state is still the one that the request was based on: it may arrive yet, and may be sent again."""
    OVERTAKEN = auto()
    """Another write was applied in its place: S3 will never apply this one."""
    UNKNOWN = auto()
    """So many writes have followed that the register no longer remembers, or it is no longer the one that the
    request was based on: somebody removed or restored it by other means."""


def fate(send: Send, seen: Seen | None) -> Fate:
    """Return what became of a request that was sent, by the entry after the one it was based on.

    Only the write id says whose that entry is. The tag doesn't: a stale owner and its successor derive
    the same tag for the same step.
    """
    ring = () if seen is None else seen.register.ring
    seq = 0 if seen is None else seen.register.last.seq
    if seq == send.base_seq:
        if seen is None:
            return Fate.NOT_YET
        if send.base is None or seen.register.last != send.base.register.last:
            return Fate.UNKNOWN
        # After a migration or re-encryption the same bytes may stand under another ETag. Then the request's
        # condition names a version that never comes back, as all that is written from now on is unique.
        return Fate.NOT_YET if seen.etag.strip('"') == send.base.etag.strip('"') else Fate.OVERTAKEN
    for entry in ring:
        if entry.seq == send.base_seq + 1:
            return Fate.APPLIED if entry.write_id == send.register.last.write_id else Fate.OVERTAKEN
    return Fate.UNKNOWN


def superseded(send: Send, seen: Seen) -> StaleToken | None:
    """Return what the writer has to hear if a newer owner has written or armed since, else None."""
    newest = seen.register.token
    return None if newest == send.register.token else StaleToken(send.register.token, newest.generation)
