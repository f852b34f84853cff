"""Which process this is: an image of something that was forked must not take itself for the original."""

from __future__ import annotations

import os
from functools import cache

Process = tuple[int, int]


def this_process() -> Process:
    """Return what is another value in a forked child, and in every child of a child.

    The pid alone comes back: P forks A, A forks B and is reaped, a child of B may be given A's pid. So the
    forks are counted, too; and not they alone, as code in C may fork without Python's knowledge.
    """
    return os.getpid(), len(_forks())


@cache
def _forks() -> list[None]:
    # Registered on first use: importing the library does nothing. The count is the forked child's own copy.
    forks: list[None] = []
    os.register_at_fork(after_in_child=lambda: forks.append(None))
    return forks
