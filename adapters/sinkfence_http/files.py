"""Small files that survive a loss of power, and locks on them."""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

SLOT: Final = 512
"""Bytes: a sector, which disks write as a whole."""

_held: Final[set[int]] = set()
_mutex: Final = threading.Lock()
_known_to_fork: Final = threading.Event()


def hold(path: str, flags: int, kind: int) -> int | None:
    """Open the file and lock it, None if that means to wait. A forked child lets go of it at once.

    Else the child, say of a pool of processes, would hold the lock after its parent was killed, for as long
    as it lives. Closed on exec (PEP 446): a program that a handler starts doesn't keep the lock, either.
    """
    with _mutex:  # a fork waits for it: no child is made between the lock and its entry
        if not _known_to_fork.is_set():
            os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_let_go)
            _known_to_fork.set()
        fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        _held.add(fd)
        return fd


def _let_go() -> None:
    for fd in _held:
        os.close(fd)  # not unlocked: the lock is the parent's
    _held.clear()
    _mutex.release()


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
    """Open or create the file and lock it, None if that means to wait."""
    return hold(path, os.O_RDWR | os.O_CREAT, kind)


def unlock(fd: int) -> None:
    """Unlock and close what this process holds: a child that was forked inside has let go already."""
    if fd not in _held:
        return
    _held.discard(fd)
    # By word, and not by close() alone: a process that was forked without our hearing of it has it, too.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
