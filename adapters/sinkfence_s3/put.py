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
from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_s3 import plan, uploads
from sinkfence_s3.answers import code
from sinkfence_s3.bodies import octets
from sinkfence_s3.data import Data, folder, fresh_name
from sinkfence_s3.exchange import Exchange
from sinkfence_s3.plan import Done, Seen, Send
from sinkfence_s3.register import MAX_INLINE, Content
from sinkfence_s3.swap import Base, KnownRegister, look, token_of
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
        self._whole = threading.Lock()
        """Held by a write; one that failed half-way keeps it, so that nothing is taken after it."""
        self._known = known
        self._bearer = bearer
        self._token = token_of(bearer)
        self._tag = None if step is None else self._token.key(step)
        self._expect = expect
        self._content_type = content_type
        self._tell: Callable[[int], object] = (lambda _: None) if progress is None else progress
        self._exchange = known.exchange()
        self._upload: Upload | None = None
        """Of the data object, once it is known that there must be one, and that it would be admitted."""
        self._base: Base | None = None
        """The state by which that was judged."""
        self._repeats = False
        """Whether a long content is not sent, as its step is known."""
        self._finished = False
        self._hash = hashlib.sha256()
        self._held: list[bytes] = []
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
            # Aborted by a newer owner's collector, which is what to hear then, or by a lifecycle rule.
            self._known.kept = None
            self._admit()

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Take a piece; whenever a part is full and more comes, it is sent.

        Raises as `FencedObject.open`; a put that would be refused is refused before its first part is sent.
        """
        # Asked and taken in one step: of two threads that both go on, one would hash its piece first, and the
        # other put its own first. Nobody could read that, and no owner replace it.
        if self.broken or not self._whole.acquire(blocking=False):
            self.broken = True
            self._check_whole()
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
            self._held.append(taken)
            self._room -= len(taken)
            self.size += len(taken)
        self._whole.release()

    def finish(self) -> Written:
        """Send what is left, and make it the content; raises as `FencedObject.put`."""
        self._check_whole()
        body: bytes | Data
        if self.size <= MAX_INLINE:
            body = self._take()
            self._tell(self.size)  # before the register is sent: its error must not hide a success
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

    def _check_whole(self) -> None:
        if self.broken or self._whole.locked():
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
            self._upload = Upload(name, exchange, self._bearer, self._content_type, self._tell)
        body = self._take()
        if self._repeats:
            self._tell(len(body))
        elif last:
            self._upload.finish(body)
        else:
            self._upload.part(body)
        return self._upload

    def _admit(self) -> None:
        self._known.ready()
        kept = self._known.kept
        if kept is not None and kept.register.token == self._token:
            try:
                self._foresee(kept)
            except SinkfenceError:
                pass  # only what stands there now may refuse, and not what this process remembers
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
        body = b"".join(self._held)
        self._held.clear()
        self._room = self._part_size
        return body

    def _remove(self) -> None:
        if self._upload is not None:
            self._upload.remove()
