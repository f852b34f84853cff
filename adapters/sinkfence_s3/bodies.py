"""The body of a put, as pieces in order, from where it stands to its end.

A body is never handed to boto3 as a file: what is sent is cut from its pieces, hashed on the way, and kept
until S3 has it. So what is sent again is the very same bytes, wherever the file stands by then.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

READ: Final = 1024 * 1024
"""Bytes that are asked of a file at a time."""


class Readable(Protocol):
    """A binary file object, or anything that reads like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, and none at the end."""
        ...


Piece = bytes | bytearray | memoryview
BodyLike = Piece | os.PathLike[str] | Readable | Iterable[Piece]
"""Bytes, a file's path, a binary file object, read from where it stands, or an iterable of bytes."""


class Body(NamedTuple):
    """A body that was opened."""

    length: int | None
    """In bytes; None for a stream, whose end is found by reading it."""
    pieces: Iterator[bytes | memoryview]
    """To be read once. Reading raises TypeError where a piece is not bytes, and ValueError where a file gives
    more or fewer bytes than `length`."""


@contextmanager
def opened(body: BodyLike) -> Generator[Body]:
    """Open a body for the block. A file object is left at its end, or where it stood if the block failed.

    Raises:
        TypeError: text, or nothing that can be read.
        ValueError: a file that already stands at its end.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        data = octets(body)
        yield Body(len(data), iter((data,)))
    elif isinstance(body, os.PathLike):
        with Path(body).open("rb") as file, _of_file(file) as opened_file:
            yield opened_file
    elif callable(getattr(body, "read", None)):
        with _of_file(cast("Readable", body)) as opened_file:
            yield opened_file
    elif isinstance(body, Iterable) and not isinstance(body, str):
        yield Body(None, _measured(cast("Iterable[object]", body), None))
    else:
        raise TypeError(
            "a body is bytes, a path (pathlib.Path), a binary file object or an iterable of bytes, not "
            f"{type(body).__name__}: encode text first"
        )


def octets(piece: object) -> bytes | memoryview:
    """Return a piece as bytes, or as a view of them where that saves a copy.

    Raises:
        TypeError: it holds no bytes.
    """
    if isinstance(piece, bytes):
        return piece
    if not isinstance(piece, bytearray | memoryview):
        raise TypeError(
            f"a body is read as bytes, and this one gave {type(piece).__name__}: open it with 'b'"
        )
    view = memoryview(cast("bytearray", piece))
    try:
        return view.cast("B")
    except TypeError:  # not contiguous, or without extent in one of its dimensions
        return view.tobytes()


@contextmanager
def _of_file(file: Readable) -> Generator[Body]:
    # By its method and not by its class: the files of tempfile and of web frameworks are no io.IOBase.
    is_seekable = getattr(file, "seekable", None)
    extent = _extent(cast("io.BufferedIOBase", file)) if callable(is_seekable) and is_seekable() else None
    if extent is None:
        yield Body(None, _measured(_read(file), None))
        return
    seekable = cast("io.BufferedIOBase", file)
    start, length = extent
    # So stands a buffer after `frame.to_parquet(buffer)`: put from there on, the object would be empty.
    if start and length <= 0:
        raise ValueError("this file stands at its end, nothing would be put: seek(0) first, or put b''")
    try:
        yield Body(length, _measured(_read(file), length))
    except Exception:
        with suppress(ValueError, OSError):  # closed meanwhile: the first error is the one to hear
            seekable.seek(start)
        raise


def _extent(file: io.BufferedIOBase) -> tuple[int, int] | None:
    """Return where a file stands, and how much of it is to come; None if only reading tells its end."""
    start = file.tell()
    try:
        length = file.seek(0, io.SEEK_END) - start
    except OSError:  # of Linux's /proc, say, which has a beginning to go back to and no end
        return None
    file.seek(start)
    return start, length


def _read(file: Readable) -> Iterator[object]:
    while (piece := cast("object", file.read(READ))) != b"":
        yield piece


def _measured(pieces: Iterable[object], length: int | None) -> Iterator[bytes | memoryview]:
    size = 0
    for given in pieces:
        piece = octets(given)
        size += len(piece)
        # Not only after the loop: a file that gives more than its length may have no end, as /dev/zero, whose
        # length is 0.
        if length is not None and size > length:
            break
        yield piece
    if length is not None and length != size:
        raise ValueError(
            f"this file had {length} bytes, and gave {size}: nothing may write to it while it is put"
        )
