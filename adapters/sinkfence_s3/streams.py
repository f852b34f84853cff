"""A data object as a stream of bytes, read in order as long as nobody seeks, and verified at its end."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from botocore.exceptions import ClientError, IncompleteReadError

from sinkfence.errors import Conflict, SchemaMismatch
from sinkfence_s3.answers import code, transient
from sinkfence_s3.delivery import READINGS, pause
from sinkfence_s3.exchange import Exchange
from sinkfence_s3.register import Content

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER: Final = 256 * 1024
"""Bytes that a reader reads ahead."""


def damaged(data_key: str, why: str) -> NoReturn:
    """Raise the error for a data object that isn't what its register says."""
    raise SchemaMismatch(
        f"the data object {data_key!r} is damaged: {why}. It was changed or removed by other means: restore "
        "it, or put the content again"
    )


class Stream(io.RawIOBase):
    """A data object, read in order as long as nobody seeks."""

    def __init__(self, exchange: Exchange, content: Content) -> None:
        self._exchange = exchange
        self._content = content
        self._at = 0
        self._next = 0  # where the open body goes on
        self._hashed = (0, hashlib.sha256())
        """How many bytes from the beginning have been hashed, without a gap, and their hash."""
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
            self._hashed = (0, hashlib.sha256())
        self._at = at
        return at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._content.size - self._at)
        if wanted <= 0:
            return 0
        data = self._read(wanted)
        view[: len(data)] = data
        hashed, known = self._hashed
        if self._at <= hashed < self._at + len(data):
            # The hash goes on as a copy, and is stored together with its count: Ctrl-C between the two would
            # have the same bytes hashed twice.
            known = known.copy()
            known.update(data[hashed - self._at :])
            hashed = self._at + len(data)
            if hashed == self._content.size and known.hexdigest() != self._content.sha256:
                self._damaged = True
            self._hashed = (hashed, known)
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
            except BaseException as failure:
                self._drop()  # bytes may have been read from it that `_next` does not count
                if not isinstance(failure, Exception):
                    raise
                if isinstance(failure, ClientError) and code(failure) == "NoSuchKey":
                    raise Conflict(
                        "the content was replaced and collected while it was read: get it again"
                    ) from failure
                turn += 1
                if not transient(failure) or turn == READINGS:
                    raise
                pause(turn)

    def _open(self) -> Any:
        where = {"Range": f"bytes={self._at}-"} if self._at else {}
        response = self._exchange.send(self._exchange.bucket.client.get_object, **where)
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
        body, self._body = self._body, None
        if body is not None:
            with suppress(Exception):
                body.close()
