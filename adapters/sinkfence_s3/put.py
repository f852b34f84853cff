"""A put: an upload, and the write that makes it the content."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
from sinkfence_s3 import plan, swap
from sinkfence_s3.known import KnownRegister, told
from sinkfence_s3.plan import Done, Seen, Send
from sinkfence_s3.register import Content
from sinkfence_s3.swap import Base, Written
from sinkfence_s3.uploads import Upload


class Put:
    """One call's put."""

    def __init__(self, known: KnownRegister, bearer: Bearer, step: str | None, expect: int | None) -> None:
        self._known = known
        self._bearer = bearer
        self._token = bearer.token
        self._tag = None if step is None else self._token.key(step)
        self._expect = expect
        self._exchange = known.exchange()
        self._base: Base | None = None
        """The state by which a long content was judged."""
        self._repeats = False
        """Whether a long content was not sent, as its step is known."""

    def upload(
        self,
        *,
        content_type: str | None = None,
        length: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Upload:
        """Return an upload of the content; the length in bytes, where it is known, decides that of parts."""
        return Upload(
            self._known.store,
            self._known.key,
            self._bearer,
            content_type=content_type,
            length=length,
            progress=progress,
            admit=self._admit,
        )

    def finish(self, upload: Upload) -> Written:
        """Finish the upload and make it the content.

        Raises:
            as `FencedObject.put`. What was sent is removed again where the register cannot name it.
        """
        content = upload.finish()
        try:
            outcome = self._known.write(
                self._exchange, self._bearer, partial(self._decide, content), self._base
            )
        except (Conflict, IdempotencyMismatch, JobMismatch, LeaseLost, StaleToken) as refusal:
            # The swap was refused, or never sent. After any other error (OutcomeUnknown, a client's own) the
            # register may name the data by now, or once a late request arrives.
            if not getattr(refusal, "earlier_attempt_unknown", False):
                upload.remove()
            raise
        if outcome.repeated:
            upload.remove()
        return Written(
            seq=outcome.entry.seq,
            generation=outcome.entry.generation,
            etag=outcome.etag,
            repeated=outcome.repeated,
            superseded=outcome.superseded is not None,
            requests=self._exchange.requests + upload.requests,
        )

    def lost(self, upload: Upload) -> None:
        """Find out why an upload is gone: aborted by a newer owner's collector, or by a lifecycle rule.

        Raises:
            StaleToken: a newer owner was here.
        """
        self._exchange.requests += upload.requests
        self._known.kept = None
        self._admit()

    def _admit(self) -> bool:
        """Judge a long content before the first of its bytes is sent; whether it must be sent at all."""
        self._known.ready()
        kept = self._known.kept
        if kept is not None and kept.register.token == self._token:
            try:
                return self._foresee(kept)
            except SinkfenceError:
                pass  # only what stands there now may refuse, and not what this process remembers
        with told(self._bearer):
            seen = swap.look(self._exchange)
            return self._foresee(seen)

    def _foresee(self, seen: Seen | None) -> bool:
        self._base = (seen,)
        self._repeats = plan.foresee(self._token, seen, tag=self._tag, expect=self._expect)
        return not self._repeats

    def _decide(self, wanted: Content, token: Token, seen: Seen | None, write_id: str) -> Send | Done:
        decided = plan.put(token, seen, write_id, wanted, tag=self._tag, expect=self._expect)
        if self._repeats and isinstance(decided, Send) and decided.repeats is None:
            raise Conflict("the register has forgotten this step while the content was read: put it again")
        return decided
