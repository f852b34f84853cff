"""A fenced object: a key of a bucket that only the newest owner of its job can write."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from sinkfence.errors import StaleToken
from sinkfence.sinks import Bearer
from sinkfence_s3 import plan, writes
from sinkfence_s3.bodies import BodyLike, read_body
from sinkfence_s3.register import MAX_INLINE, Content, check_content_type
from sinkfence_s3.store import Exchange, Store


@dataclass(frozen=True, slots=True)
class Written:
    """What a put did."""

    seq: int
    """The number of the write that put this content: pass it as `expect` to replace just that."""
    generation: int | None
    """The generation that put it; None for `put_once`, which has no fence."""
    etag: str | None
    """The S3 object's ETag as that write left it; None where that is no longer known."""
    repeated: bool
    """Whether an earlier put of the same step had done it already, under whatever generation."""
    superseded: bool
    """Whether it was applied and a newer owner has come since: the lease is lost."""
    requests: int
    """S3 requests of this call, with boto3's own repetitions as far as it tells, without the probe's."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of an object's content, and of the mark that guards it."""

    seq: int
    """The number of the write that put the content: what `expect` is compared with."""
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hex."""
    content_type: str | None
    etag: str
    """The S3 object's own ETag: it changes with each write and each arming."""
    job_id: str
    generation: int
    """The mark: the highest generation that wrote or armed. To look at, never to write with."""
    owner: str


class Reader(io.BytesIO):
    """The content of a fenced object: a seekable binary file, already verified, and its `stat`."""

    def __init__(self, content: bytes, stat: Stat) -> None:
        super().__init__(content)
        self.stat: Final = stat


class FencedObject:
    """One name of a bucket, made by `FencedBucket.object`: a sink, safe to share between threads.

    It remembers the state that its last write left, so that an owner's next write is one request.
    """

    durable: bool = True

    def __init__(self, store: Store, key: str, ready: Callable[[], None]) -> None:
        self._store = store
        self._key = key
        self._ready = ready
        self._kept: plan.Seen | None = None

    def arm(self, bearer: Bearer) -> None:
        """Raise the mark: once this returns, S3 refuses whatever an older owner has under way here.

        The content stays as it is. Safe to repeat and to race; one request if it was armed already, else two.

        Raises:
            StaleToken, GenerationConflict: a newer owner was here; the bearer is told.
            JobMismatch: the object belongs to another job.
            OutcomeUnknown: sent, and its fate cannot be read: arm again.
            SchemaMismatch: something else, or a later format, is at this key.
            NotEnforced: the store ignores conditions.
        """
        token = bearer.token
        self._ready()
        outcome = self._write(Exchange(self._store, self._key), bearer, plan.arm)
        if outcome.superseded:  # armed, and a newer owner has armed since: to the caller it is all the same
            stale = StaleToken(token, outcome.seen.register.generation)
            bearer.lose(stale)
            raise stale

    def put(
        self,
        body: BodyLike,
        bearer: Bearer,
        *,
        step: str | None = None,
        expect: int | None = None,
        content_type: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Written:
        """Replace the content. Without `expect`, the last put of the newest owner wins.

        Args:
            body: bytes, a path, or a binary file, which is read once from where it stands; up to 256 KiB.
            bearer: a lease, or a token.
            step: what this put is to the job. A repetition, by a new owner too, is recognised among the
                object's last 64 writes and armings, and puts nothing.
            expect: the `seq` of the content to be replaced; 0 for none yet.
            content_type: kept for readers (`Stat.content_type`).
            progress: called with numbers of bytes as they are read, like `tqdm.update`; its error ends the
                put before anything is sent.

        Raises:
            StaleToken, GenerationConflict: a newer owner was here; the bearer is told.
            Conflict: the content is no longer that of write `expect`.
            IdempotencyMismatch: the step has put other content.
            OutcomeUnknown: sent, and its fate cannot be read: repeat it under the same step.
            JobMismatch, SchemaMismatch, NotEnforced: as `arm`.
            ValueError, TypeError: a body that is too long, spent, or text; a malformed argument.
        """
        token = bearer.token
        tag = None if step is None else token.key(step)
        if expect is not None and (type(expect) is not int or expect < 0):
            raise ValueError("expect is the seq of the content to replace: an int, and 0 for none")
        check_content_type(content_type)
        data = read_body(body, MAX_INLINE)
        if progress is not None:
            progress(len(data))  # before anything is sent: its error must not hide a put that was applied
        wanted = Content(data, content_type, hashlib.sha256(data).hexdigest(), 0)
        self._ready()
        exchange = Exchange(self._store, self._key)
        decide = partial(plan.put, wanted=wanted, tag=tag, expect=expect)
        outcome = self._write(exchange, bearer, decide)
        if outcome.superseded:
            bearer.lose(StaleToken(token, outcome.seen.register.generation))
        return Written(
            seq=outcome.entry.seq,
            generation=outcome.entry.generation,
            etag=outcome.etag,
            repeated=outcome.repeated,
            superseded=outcome.superseded,
            requests=exchange.requests,
        )

    def get(self) -> Reader:
        """Return the content as a file, its SHA-256 verified.

        Raises:
            KeyError: nothing was put here.
            SchemaMismatch: something else, or damaged content, is at this key.
        """
        reader = self._read()
        if reader is None:
            raise KeyError(self._key)
        return reader

    def stat(self) -> Stat | None:
        """Return what is known of the content, or None if nothing was put here.

        Raises:
            SchemaMismatch: as `get`.
        """
        reader = self._read()
        return None if reader is None else reader.stat

    def _write(self, exchange: Exchange, bearer: Bearer, decide: writes.Decide) -> writes.Outcome:
        token, kept = bearer.token, self._kept
        if kept is not None and kept.register.token != token:
            kept = None  # another owner's state: most likely no longer the newest
        try:
            outcome = writes.write(exchange, bearer, decide, kept)
        except StaleToken as stale:
            bearer.lose(stale)
            raise
        self._kept = outcome.seen
        return outcome

    def _read(self) -> Reader | None:
        seen = writes.look(Exchange(self._store, self._key))
        if seen is None or seen.register.content is None:
            return None
        register, content = seen.register, seen.register.content
        stat = Stat(
            seq=content.seq,
            size=len(content.body),
            sha256=content.sha256,
            content_type=content.content_type,
            etag=seen.etag,
            job_id=register.job_id,
            generation=register.generation,
            owner=register.owner,
        )
        return Reader(content.body, stat)
