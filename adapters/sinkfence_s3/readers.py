"""A reader: the content of a fenced object as a seekable file, and what is known of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from botocore.exceptions import ClientError

from sinkfence.errors import Conflict
from sinkfence_s3.answers import code
from sinkfence_s3.data import Data, folder
from sinkfence_s3.delivery import pause
from sinkfence_s3.exchange import Bucket, Exchange
from sinkfence_s3.register import Content
from sinkfence_s3.streams import BUFFER, Stream, damaged
from sinkfence_s3.swap import look

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

LOOKS: Final = 16
"""How often a reader looks again after the content that it had found was replaced and collected."""


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
    data_key: str | None
    """The key of the immutable S3 object that holds the content; None where it is in the register itself."""


@dataclass(frozen=True, slots=True)
class JobMark:
    """Whose an object is, whether it has content or not."""

    job_id: str
    generation: int
    """The highest that wrote or armed. To look at, never to write with."""
    owner: str


def mark(bucket: Bucket, key: str) -> JobMark | None:
    """Return the mark of a register, or None if nothing is at the key; raises as `FencedObject.mark`."""
    seen = look(Exchange(bucket, key))
    if seen is None:
        return None
    token = seen.register.token
    return JobMark(token.job_id, token.generation, token.owner)


def find(bucket: Bucket, key: str) -> tuple[Stat, Content] | None:
    """Return what is known of the content, and the content or where it is; None if there is none.

    Raises as `FencedObject.stat`.
    """
    seen = look(Exchange(bucket, key))
    if seen is None or seen.register.content is None:
        return None
    register, content = seen.register, seen.register.content
    stat = Stat(
        seq=content.seq,
        size=content.size,
        sha256=content.sha256,
        content_type=content.content_type,
        etag=seen.etag,
        job_id=register.token.job_id,
        generation=register.token.generation,
        owner=register.token.owner,
        data_key=folder(key) + content.body.name if isinstance(content.body, Data) else None,
    )
    return stat, content


def read(bucket: Bucket, key: str) -> Reader:
    """Open the content; raises as `FencedObject.get`."""
    missing_key: str | None = None
    for turn in range(LOOKS):
        stat_and_content = find(bucket, key)
        if stat_and_content is None:
            raise KeyError(key)
        stat, content = stat_and_content
        if stat.data_key is None:
            assert isinstance(content.body, bytes)
            return Reader(io.BytesIO(content.body), stat)
        try:
            return Reader(Stream(Exchange(bucket, stat.data_key), content), stat)
        except ClientError as error:
            if code(error) != "NoSuchKey":
                raise
        # Read the register; a new owner put and collected what it named; ask for the data: 404. By now the
        # register names other data. If it doesn't, somebody has removed what it names by other means.
        if stat.data_key == missing_key:
            damaged(stat.data_key, "it is missing")
        missing_key = stat.data_key
        pause(turn)
    raise Conflict(f"the content of {key!r} was replaced {LOOKS} times before it could be read: read again")


class Reader(io.BufferedReader):
    """The content of a fenced object: a seekable binary file, and its `stat`.

    Up to 1 MiB it is in memory, already verified. What is longer is streamed, and read by ranges where the
    reader seeks; its SHA-256 is verified each time that it has been read from its beginning to its end. A
    connection that breaks is made again; where a read fails all the same, the file stands where it stood.
    Close it, or use it in a `with` block: it may hold a connection.

    Raises:
        SchemaMismatch: on reading, the content is damaged.
        Conflict: on reading, the content was replaced and collected meanwhile: `get` again.
    """

    def __init__(self, raw: io.BytesIO | Stream, stat: Stat) -> None:
        super().__init__(raw, BUFFER)
        self.stat: Final = stat

    def read(self, size: int | None = -1, /) -> bytes:
        return self._position_kept(super().read, size)

    def read1(self, size: int = -1, /) -> bytes:
        return self._position_kept(super().read1, size)

    def peek(self, size: int = 0, /) -> bytes:
        return self._position_kept(super().peek, size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        return self._position_kept(super().readinto, buffer)

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        return self._position_kept(super().readinto1, buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._position_kept(super().readline, size)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        return self._position_kept(super().readlines, -1 if hint is None else hint)

    def _position_kept(self, read: Callable[..., T], *how: object) -> T:
        position = self.tell()
        # try, and no context manager: Ctrl-C while a context manager is being left would pass it by.
        try:
            return read(*how)
        except BaseException:
            # The bytes that were read before the error are lost with it: who reads on must get them again.
            self.seek(position)
            raise
