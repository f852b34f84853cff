"""A reader: the content of a fenced object as a seekable file, and what is known of it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from botocore.exceptions import ClientError, IncompleteReadError

from sinkfence.errors import Conflict, SchemaMismatch
from sinkfence_s3.data import Data, folder
from sinkfence_s3.delivery import READINGS, pause
from sinkfence_s3.register import Content
from sinkfence_s3.store import Exchange, Store, code, passing
from sinkfence_s3.swap import look

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LOOKS: Final = 16
"""How often a reader looks again after the content that it had found was replaced and collected."""
BUFFER: Final = 256 * 1024
"""Bytes that a reader reads ahead."""


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


def find(store: Store, key: str) -> tuple[Stat, Content] | None:
    """Return what is known of the content, and the content or where it is; None if there is none.

    Raises:
        SchemaMismatch: something else, or a damaged register, is at this key.
    """
    seen = look(Exchange(store, key))
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


def read(store: Store, key: str) -> Reader:
    """Open the content.

    Raises:
        KeyError: there is none.
        SchemaMismatch: as `find`; or the register names a data object that isn't there.
        Conflict: it was replaced again and again before it could be opened.
    """
    missing: str | None = None
    for turn in range(LOOKS):
        found = find(store, key)
        if found is None:
            raise KeyError(key)
        stat, content = found
        if stat.data_key is None:
            assert isinstance(content.body, bytes)
            return Reader(io.BytesIO(content.body), stat)
        try:
            return Reader(Stream(Exchange(store, stat.data_key), content), stat)
        except ClientError as error:
            if code(error) != "NoSuchKey":
                raise
        # Read the register; a new owner put and collected what it named; ask for the data: 404. By now the
        # register names other data. If it doesn't, somebody has removed what it names by other means.
        if stat.data_key == missing:
            damaged(stat.data_key, "it is missing")
        missing = stat.data_key
        pause(turn)
    raise Conflict(f"the content of {key!r} was replaced {LOOKS} times before it could be read: read again")


def damaged(data_key: str, why: str) -> NoReturn:
    """Raise the error for a data object that isn't what its register says."""
    raise SchemaMismatch(
        f"the data object {data_key!r} is damaged: {why}. It was changed or removed by other means: restore "
        "it, or put the content again"
    )


class Reader(io.BufferedReader):
    """The content of a fenced object: a seekable binary file, and its `stat`.

    Up to 256 KiB it is in memory, already verified. What is longer is streamed, and read by ranges where the
    reader seeks; its SHA-256 is verified at the end if all of it was read from the beginning on, each time. A
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
        with self._standing():
            return super().read(size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        with self._standing():
            return super().readinto(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        with self._standing():
            return super().readline(size)

    @contextmanager
    def _standing(self) -> Generator[None]:
        at = self.tell()
        try:
            yield
        except BaseException:
            # What had been read by then is lost with the error: whoever reads on must not miss it unseen.
            self.seek(at)
            raise


class Stream(io.RawIOBase):
    """A data object, read in order as long as nobody seeks."""

    def __init__(self, exchange: Exchange, content: Content) -> None:
        self._exchange = exchange
        self._content = content
        self._at = 0
        self._next = 0  # where the open body goes on
        self._hash = hashlib.sha256()
        self._hashed = 0
        """How many bytes from the beginning have been hashed, without a gap."""
        self._damaged = False
        self._body = self._open()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence is 0, 1 or 2, not {whence!r}")
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        if at < 0:
            raise ValueError("a file has no place before its beginning")
        if at == 0:  # read once more, it is verified once more
            self._hash, self._hashed = hashlib.sha256(), 0
        self._at = at
        return at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._content.size - self._at)
        if wanted <= 0:
            return 0
        data = self._read(wanted)
        view[: len(data)] = data
        if self._at <= self._hashed < self._at + len(data):
            self._hash.update(data[self._hashed - self._at :])
            self._hashed = self._at + len(data)
            if self._hashed == self._content.size and self._hash.hexdigest() != self._content.sha256:
                self._damaged = True
        if self._damaged:
            damaged(self._exchange.key, "its SHA-256 is another")
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(4 * BUFFER) or b"", b""))

    def close(self) -> None:
        self._drop()
        super().close()

    def _read(self, wanted: int) -> bytes:
        turn = 0
        while True:
            try:
                if self._body is None or self._next != self._at:
                    self._drop()
                    self._body = self._open()
                    self._next = self._at
                data: bytes = self._body.read(wanted)
                if not data:
                    raise IncompleteReadError(actual_bytes=self._at, expected_bytes=self._content.size)
                self._next += len(data)
                return data
            except Exception as failure:
                self._drop()
                if isinstance(failure, ClientError) and code(failure) == "NoSuchKey":
                    raise Conflict(
                        "the content was replaced and collected while it was read: get it again"
                    ) from failure
                turn += 1
                if not passing(failure) or turn == READINGS:
                    raise
                pause(turn)

    def _open(self) -> Any:
        where = {"Range": f"bytes={self._at}-"} if self._at else {}
        response = self._exchange.send(self._exchange.store.client.get_object, **where)
        if self._at and not str(response.get("ContentRange", "")).startswith(f"bytes {self._at}-"):
            response["Body"].close()
            raise io.UnsupportedOperation(
                "this store ignores ranges: read from the beginning, without seeking"
            )
        if response.get("ContentLength", self._content.size - self._at) != self._content.size - self._at:
            response["Body"].close()
            damaged(self._exchange.key, "its length is another")
        return response["Body"]

    def _drop(self) -> None:
        if self._body is not None:
            with suppress(Exception):
                self._body.close()
            self._body = None
