"""A put: content on its way, held back while it is small, and the write that makes it the content."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from botocore.exceptions import ClientError

from sinkfence import observe
from sinkfence.errors import (
    Conflict,
    IdempotencyMismatch,
    JobMismatch,
    LeaseLost,
    SinkfenceError,
    StaleToken,
)
from sinkfence.sinks import Bearer, token_of
from sinkfence.tokens import Token
from sinkfence_s3 import plan, uploads
from sinkfence_s3.answers import code
from sinkfence_s3.bodies import octets
from sinkfence_s3.data import Data, folder, fresh_name
from sinkfence_s3.exchange import Exchange
from sinkfence_s3.plan import Done, Seen, Send
from sinkfence_s3.register import MAX_INLINE, Content
from sinkfence_s3.swap import Base, KnownRegister, look
from sinkfence_s3.uploads import Upload


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


class Put:
    """One call's put, filled by one thread: in a `with` block pieces are written, then it is finished.

    If the block fails, what was sent is removed again.
    """

    def __init__(
        self,
        known: KnownRegister,
        bearer: Bearer,
        *,
        step: str | None,
        expect: int | None = None,
        content_type: str | None = None,
        length: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.size: int = 0
        """Bytes written so far."""
        self.broken: bool = False
        """True once a write failed. The caller may have caught the error; nothing more is taken."""
        self._write_lock = threading.Lock()
        """Held while a piece is taken; kept by a write that failed half-way, so that no later piece is."""
        self._known = known
        self._bearer = bearer
        self._token = token_of(bearer)
        self._tag = None if step is None else self._token.key(step)
        self._expect = expect
        self._content_type = content_type
        self._progress: Callable[[int], object] = (lambda _: None) if progress is None else progress
        self._exchange = known.exchange()
        self._upload: Upload | None = None
        """Of the data object; None until something of it is to be sent, and the put was admitted."""
        self._base: Base | None = None
        """The state by which a long content was admitted, and with which `finish` begins."""
        self._repeats = False
        """Whether the register knows the step already: a long content is hashed then, and not sent."""
        self._finished = False
        self._hash = hashlib.sha256()
        self._unsent: list[bytes] = []
        self._part_size = max(uploads.PART, -(-(length or 0) // uploads.PARTS))
        self._room = self._part_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None or self._finished:
            return
        self._remove()
        if isinstance(error, ClientError) and code(error) == "NoSuchUpload":
            # The upload was aborted. If a newer owner's collector did it, the caller has to hear StaleToken;
            # if a lifecycle rule did it, S3's own error.
            self._known.remembered = None
            self._admit()

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Take a piece; whenever a part is full and more comes, it is sent.

        Raises as `FencedObject.open`; a put that would be refused is refused before its first part is sent.
        """
        # The lock is tried and taken in one step. Otherwise two threads may both go on: A hashes its piece
        # first, B appends its piece first. The digest is then not that of the bytes: nobody could read such a
        # register, and no owner replace it.
        if self.broken or not self._write_lock.acquire(blocking=False):
            self.broken = True
            self._check_no_gap()
        rest = octets(piece)
        while len(rest):
            if not self._room:
                self._send(last=False)
            if isinstance(rest, bytes) and len(rest) <= self._room:
                taken, rest = rest, b""
            else:
                # A copy: whoever wrote it may go on to use its buffer for something else.
                view = memoryview(rest)
                taken, rest = bytes(view[: self._room]), view[self._room :]
            self._hash.update(taken)
            self._unsent.append(taken)
            self._room -= len(taken)
            self.size += len(taken)
        self._write_lock.release()

    def finish(self) -> Written:
        """Send what is left, and make it the content; raises as `FencedObject.put`."""
        self._check_no_gap()
        body: bytes | Data
        if self.size <= MAX_INLINE:
            body = self._take()
            # Before the register is sent: an error of the caller's callback must not hide a success.
            self._progress(self.size)
        else:
            body = Data(self._send(last=True).name, self.size)
        self._finished = True
        content = Content(body, self._content_type, self._hash.hexdigest(), 0)

        def decide(token: Token, seen: Seen | None, write_id: str) -> Send | Done:
            decided = plan.put(token, seen, write_id, content, tag=self._tag, expect=self._expect)
            if self._repeats and isinstance(decided, Send) and decided.repeats is None:
                raise Conflict(
                    "the register has forgotten this step while the content was read: put it again"
                )
            return decided

        try:
            outcome = self._known.write(self._exchange, self._bearer, decide, self._base)
        except (Conflict, IdempotencyMismatch, JobMismatch, LeaseLost, StaleToken) as refusal:
            # The swap was refused, or never sent. After any other error (OutcomeUnknown, a client's own) the
            # register may name the data by now, or once a late request arrives.
            if not getattr(refusal, "earlier_attempt_unknown", False):
                self._remove()
            raise
        if outcome.repeated:
            self._remove()
        return Written(
            seq=outcome.entry.seq,
            generation=outcome.entry.generation,
            etag=outcome.etag,
            repeated=outcome.repeated,
            superseded=outcome.superseded is not None,
            requests=self._exchange.requests + (0 if self._upload is None else self._upload.requests),
        )

    def _check_no_gap(self) -> None:
        if self.broken or self._write_lock.locked():
            raise ValueError(
                "an earlier write of this content failed, or another thread was writing it: what is here has "
                "gaps, put it again, by one thread"
            )

    def _send(self, *, last: bool) -> Upload:
        if self._upload is None:
            # Judged before the first byte of a long content is sent, so that no stale owner sends it in vain.
            self._admit()
            name = fresh_name(self._token.generation)
            exchange = Exchange(self._known.bucket, folder(self._known.key) + name)
            self._upload = Upload(name, exchange, self._bearer, self._content_type, self._progress)
        body = self._take()
        if self._repeats:
            self._progress(len(body))
        elif last:
            self._upload.finish(body)
        else:
            self._upload.part(body)
        return self._upload

    def _admit(self) -> None:
        self._known.ensure_enforced()
        remembered = self._known.remembered
        if remembered is not None and remembered.register.token == self._token:
            try:
                self._foresee(remembered)
            except SinkfenceError:
                pass  # what this process remembers refuses nobody: only the register that stands there now
            else:
                return
        seen = look(self._exchange)
        try:
            self._foresee(seen)
        except StaleToken as stale:
            observe.refuse("s3", self._bearer, stale)
            raise

    def _foresee(self, seen: Seen | None) -> None:
        self._base = (seen,)
        self._repeats = plan.foresee(self._token, seen, tag=self._tag, expect=self._expect)

    def _take(self) -> bytes:
        body = b"".join(self._unsent)
        self._unsent.clear()
        self._room = self._part_size
        return body

    def _remove(self) -> None:
        if self._upload is not None:
            self._upload.remove()
