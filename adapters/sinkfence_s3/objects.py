"""A fenced object: a key of a bucket that only the newest owner of its job can write."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from sinkfence.sinks import Bearer, token_of
from sinkfence_s3 import plan, readers
from sinkfence_s3.bodies import BodyLike, opened
from sinkfence_s3.data import Data, folder
from sinkfence_s3.delivery import remove
from sinkfence_s3.exchange import Bucket, Exchange
from sinkfence_s3.put import Put, Written
from sinkfence_s3.readers import JobMark, Reader, Stat
from sinkfence_s3.register import check_content_type
from sinkfence_s3.swap import KnownRegister
from sinkfence_s3.writers import Writer


class FencedObject:
    """One name of a bucket, made by `FencedBucket.object`: a sink, safe to share between threads.

    It remembers the state that its last write left, so that an owner's next write is one request.
    """

    durable: bool = True

    def __init__(self, bucket: Bucket, key: str, ensure_enforced: Callable[[], None]) -> None:
        self._known = KnownRegister(bucket, key, ensure_enforced)

    def arm(self, bearer: Bearer) -> None:
        """Raise the mark: once this returns, S3 refuses whatever an older owner has under way here.

        The content stays as it is. Safe to repeat and to race; one request if it was armed already, else two.

        Raises:
            StaleToken, GenerationConflict: a newer owner was here; the bearer is told.
            JobMismatch: the object belongs to another job.
            OutcomeUnknown: sent, and its fate cannot be read: arm again.
            SchemaMismatch: something else, or a later format, is at this key; or the store keeps keys as
                paths, and has others below this one.
            NotEnforced: the store ignores conditions.
        """
        outcome = self._known.write(self._known.exchange(), bearer, plan.arm, act="arm")
        if outcome.superseded is not None:  # armed, and then a newer owner came: to the caller a refusal
            raise outcome.superseded

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

        One request up to 1 MiB. What is longer goes to a data object of its own first, in parts of 8 MiB
        of which at most five are in memory; until all of it is there, readers have the old content. S3 takes
        10,000 parts: those of a file above 78 GiB are longer; a body of unknown length has 78 GiB at most.

        Args:
            body: bytes, a path, a binary file, which is read from where it stands, or an iterable of bytes.
            bearer: a lease, or a token. A lease's term is looked at again before each part.
            step: what this put is to the job. A repetition, by a new owner too, is recognised among the
                object's last 64 writes and armings, and puts nothing.
            expect: the `seq` of the content to be replaced; 0 for none yet.
            content_type: kept for readers (`Stat.content_type`).
            progress: called with a number of bytes, like `tqdm.update`: after each part; for a body that is
                one request once, before it is sent. An error that it raises ends the put, without effect.

        Raises:
            StaleToken, GenerationConflict: a newer owner was here; the bearer is told.
            Conflict: the content is no longer that of write `expect`; or other threads of this owner wrote
                first, 32 times.
            IdempotencyMismatch: the step has put other content.
            OutcomeUnknown: sent, and its fate cannot be read: repeat it under the same step.
            JobMismatch, SchemaMismatch, NotEnforced: as `arm`.
            ValueError, TypeError: a body that is spent, text, or written to meanwhile; a malformed argument.
        """
        if expect is not None and (type(expect) is not int or expect < 0):
            raise ValueError("expect is the seq of the content to replace: an int, and 0 for none")
        check_content_type(content_type)
        with opened(body) as source:
            put = Put(
                self._known,
                bearer,
                step=step,
                expect=expect,
                content_type=content_type,
                length=source.length,
                progress=progress,
            )
            with put:
                for piece in source.pieces:
                    put.write(piece)
                return put.finish()

    @contextmanager
    def open(self, bearer: Bearer, *, step: str | None = None) -> Generator[Writer]:
        """Replace the content by what is written to a file inside the block, once the block ends cleanly.

        An exception in the block puts nothing, and leaves nothing of what was sent. Up to 1 MiB nothing is
        sent before the end of the block. `written` of the file tells afterwards what the put did. It takes up
        to 78 GiB; a write that failed ends the put, even if its error is caught. What is wrapped around the
        file (io.TextIOWrapper, gzip.GzipFile) has a buffer of its own: close it inside the block, best as the
        last item of the same `with`, else its last bytes are missing from the content, and no error says so.

        Raises:
            as `put`; inside the block, on writing, as well as at its end.
            ValueError: more than 78 GiB; an earlier write failed; or two threads wrote at once.
        """
        with Put(self._known, bearer, step=step) as put, Writer(put) as file:
            yield file
            file.written = put.finish()

    def delete(self, bearer: Bearer, *, step: str | None = None) -> None:
        """Take the content away: to readers it is as if nothing was put. The register stays, with its mark.

        Safe to repeat; `step` keeps a repetition from deleting what was put since. A data object that held
        the content is removed as well.

        Raises:
            as `arm`; IdempotencyMismatch: the step has put something.
        """
        tag = None if step is None else token_of(bearer).key(step)
        outcome = self._known.write(self._known.exchange(), bearer, partial(plan.delete, tag=tag))
        if outcome.replaced is not None and isinstance(outcome.replaced.body, Data):
            # No register will name this data object again: the one that named it is replaced for good, and
            # each later one keeps the content of the one before it, or names new data.
            key = folder(self._known.key) + outcome.replaced.body.name
            remove(Exchange(self._known.bucket, key))

    def get(self) -> Reader:
        """Return the content as a file: see `Reader` for when its SHA-256 is verified.

        Raises:
            KeyError: nothing was put here, or it was deleted.
            SchemaMismatch: something else is at this key, or its content is damaged or missing.
            Conflict: the content was replaced and collected again and again before it could be opened.
        """
        return readers.read(self._known.bucket, self._known.key)

    def stat(self) -> Stat | None:
        """Return what is known of the content, or None if nothing was put here, or it was deleted.

        Raises:
            SchemaMismatch: something else, or a damaged register, is at this key.
        """
        stat_and_content = readers.find(self._known.bucket, self._known.key)
        return None if stat_and_content is None else stat_and_content[0]

    def mark(self) -> JobMark | None:
        """Return whose the object is, also where it was only armed or was deleted; None if nobody was here.

        To look at, never to write with: under a generation that was read here a stale owner looks new.

        Raises:
            SchemaMismatch: as `stat`.
        """
        return readers.mark(self._known.bucket, self._known.key)
