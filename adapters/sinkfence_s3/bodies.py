"""The body of a put, read once and bounded, so that it can be hashed and sent again."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Protocol, cast


class Readable(Protocol):
    """A binary file object, or anything that reads like one."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, and none at the end."""
        ...


BodyLike = bytes | bytearray | memoryview | os.PathLike[str] | Readable
"""Bytes, the path of a file, or a binary file object, which is read from where it stands."""


def read_body(body: BodyLike, limit: int) -> bytes:
    """Return the body's bytes, at most `limit` of them.

    A file object is left at its end, or where it stood if it was refused.

    Raises:
        TypeError: text, or nothing that can be read.
        ValueError: longer than `limit`, or a file that already stands at its end.
    """
    if isinstance(body, bytes | bytearray | memoryview):
        return _bounded(bytes(body), limit)
    if isinstance(body, os.PathLike):
        with Path(body).open("rb") as opened:
            return _bounded(_read(opened, limit), limit)
    if not callable(getattr(body, "read", None)):
        raise TypeError(
            f"a body is bytes, a path (pathlib.Path), or a binary file object, not {type(body).__name__}: "
            "encode text first"
        )
    if not _seekable(body):
        return _bounded(_read(body, limit), limit)
    file = cast("io.BufferedIOBase", body)
    start = file.tell()
    # What `to_parquet(buffer)` leaves behind: uploaded as it stands, it would be an empty object.
    if start and file.seek(0, io.SEEK_END) <= start:
        file.seek(start)
        raise ValueError("this file stands at its end, nothing would be put: seek(0) first, or put b''")
    file.seek(start)
    try:
        return _bounded(_read(body, limit), limit)
    except (TypeError, ValueError):
        file.seek(start)
        raise


def _read(file: Readable, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size <= limit:  # one byte too many is enough to know
        part = cast("object", file.read(limit + 1 - size))
        if not isinstance(part, bytes | bytearray):
            raise TypeError(
                f"a body is read as bytes, and this one gave {type(part).__name__}: open it with 'b'"
            )
        if not part:
            break
        parts.append(bytes(part))
        size += len(parts[-1])
    return b"".join(parts)


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise ValueError(
            f"this body has more than {limit} bytes ({limit // 1024} KiB), the most that fits here"
        )
    return data


def _seekable(body: object) -> bool:
    # Asked and not looked up: the wrappers of tempfile and of web frameworks are no io.IOBase.
    seekable = getattr(body, "seekable", None)
    return callable(seekable) and bool(seekable())
