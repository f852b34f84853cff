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


class Held:
    """A file that is open and locked here. Not its number alone: that is soon another file's."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd: int = fd


_held: Final[set[Held]] = set()
_mutex: Final = threading.RLock()  # not a plain one: a signal handler may fork the thread that has it
_forks: Final = [0]
_known_to_fork: Final = threading.Event()


def hold(path: str, flags: int, kind: int) -> Held | None:
    """Open the file and lock it, None if that means to wait. A forked child lets go of it at once.

    Else the child, say of a pool of processes, would hold the lock after its parent was killed, for as long
    as it lives. Closed on exec (PEP 446): a program that a handler starts doesn't keep the lock, either.
    """
    with _mutex:  # a fork in another thread waits for it: no child is made between the lock and its entry
        if not _known_to_fork.is_set():
            os.register_at_fork(before=_mutex.acquire, after_in_parent=_forked, after_in_child=_let_go)
            _known_to_fork.set()
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
            held = Held(fd)
            _held.add(held)
            if forks == _forks[0]:
                return held
            # A signal handler has forked this thread before the entry: its child has the lock, too.
            unlock(held)
            flags &= ~os.O_EXCL


def _forked() -> None:
    _forks[0] += 1
    _mutex.release()


def _let_go() -> None:
    while _held:
        held = _held.pop()
        os.close(held.fd)  # not unlocked: the lock is the parent's
        held.fd = -1
    _forked()


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
def locked(path: str, kind: int) -> Generator[Held | None]:
    """Give the file, locked for the block, None if that means to wait."""
    held = lock(path, kind)
    try:
        yield held
    finally:
        if held is not None:
            unlock(held)


def lock(path: str, kind: int) -> Held | None:
    """Open or create the file and lock it, None if that means to wait."""
    return hold(path, os.O_RDWR | os.O_CREAT, kind)


def is_held(held: Held) -> bool:
    """Whether it still is, by this process: a child that was forked inside has let go."""
    return held in _held


def unlock(held: Held) -> None:
    """Unlock and close it, if this process holds it still."""
    with _mutex:
        if held not in _held:
            return
        # By word, not by close() alone: a process that was forked without our hearing of it has it, too.
        fcntl.flock(held.fd, fcntl.LOCK_UN)
        _held.discard(held)
        os.close(held.fd)
