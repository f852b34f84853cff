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


class LockedFile:
    """A file that is open and locked here. An object, as its descriptor is soon another file's number."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd: int = fd


_locked_here: Final[set[LockedFile]] = set()
_mutex: Final = threading.RLock()  # not a plain one: a signal handler may fork the thread that has it
_forks: Final = [0]
_hooked: Final = threading.Event()
"""Set once os.register_at_fork has been told of the functions below."""


def open_and_lock(path: str, flags: int, kind: int) -> LockedFile | None:
    """Open a file and lock it by flock(2); None where another process or thread has a lock that excludes it.

    A forked child closes it at once. Else the child, say of a pool of processes, would have the lock after
    its parent was killed, for as long as it lives. Closed on exec (PEP 446): a program that a handler starts
    doesn't keep the lock, either.
    """
    with _mutex:  # a fork in another thread waits for it: no child is made between the lock and its entry
        if not _hooked.is_set():
            os.register_at_fork(
                before=_mutex.acquire, after_in_parent=_count_fork, after_in_child=_close_in_child
            )
            _hooked.set()
        while True:
            forks = _forks[0]
            fd = os.open(path, flags, 0o600)
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            file = LockedFile(fd)
            _locked_here.add(file)
            if forks == _forks[0]:
                return file
            # A signal handler has forked this thread before the entry: its child has the lock, too.
            unlock(file)
            flags &= ~os.O_EXCL


def _count_fork() -> None:
    _forks[0] += 1
    _mutex.release()


def _close_in_child() -> None:
    while _locked_here:
        file = _locked_here.pop()
        os.close(file.fd)  # not unlocked: the lock is the parent's
        file.fd = -1
    _count_fork()


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
def locked(path: str, kind: int) -> Generator[LockedFile | None]:
    """Surround a block with the lock of a file; yields None where `lock` returns it."""
    file = lock(path, kind)
    try:
        yield file
    finally:
        if file is not None:
            unlock(file)


def lock(path: str, kind: int) -> LockedFile | None:
    """As `open_and_lock`, and create the file if it isn't there."""
    return open_and_lock(path, os.O_RDWR | os.O_CREAT, kind)


def is_locked_here(file: LockedFile) -> bool:
    """Whether this process has it locked still: a child that was forked inside has let go."""
    return file in _locked_here


def unlock(file: LockedFile) -> None:
    """Unlock and close a file, if this process has it locked still."""
    with _mutex:
        if file not in _locked_here:
            return
        # By word, not by close() alone: a process that was forked without our hearing of it has it, too.
        fcntl.flock(file.fd, fcntl.LOCK_UN)
        _locked_here.discard(file)
        os.close(file.fd)
