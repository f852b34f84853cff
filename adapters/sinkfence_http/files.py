"""Small files that survive a loss of power, and locks on them."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

SLOT: Final = 512
"""Bytes: a sector, which disks write as a whole."""


def read(path: str) -> bytes:
    """Return what is in a file of at most two slots."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 2 * SLOT)
    finally:
        os.close(fd)


def seal(text: str) -> bytes:
    """Return a slot that holds the text, and whether it is whole."""
    data = text.encode()
    return (b"%08x %s\n" % (zlib.crc32(data), data)).ljust(SLOT, b"\0")


def unseal(data: bytes) -> str | None:
    """Return the text of a slot, None if there is none, or a part of one."""
    mark, _, text = data.rstrip(b"\0").removesuffix(b"\n").partition(b" ")
    return text.decode() if text and mark == b"%08x" % zlib.crc32(text) else None


@contextmanager
def locked(path: str, kind: int) -> Generator[int | None]:
    """Give the file, locked for the block, None if that means to wait."""
    fd = lock(path, kind)
    try:
        yield fd
    finally:
        if fd is not None:
            unlock(fd)


def lock(path: str, kind: int) -> int | None:
    """Open the file and lock it, None if that means to wait.

    Closed on exec (PEP 446): a program that a handler starts doesn't keep the lock.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def unlock(fd: int) -> None:
    """Unlock and close."""
    # By word, and not by close() alone: a process forked meanwhile has the same lock in its hands.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
