"""A process of the story from within: it takes its brief, tells what happens, and ends with the story."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any, Final

from sinkfence_trials.history import now

PR_SET_PDEATHSIG: Final = 1


def enter() -> dict[str, Any]:
    """Read the brief, one line of JSON on standard input, and from here on end with the story.

    Standard input stays open as long as the story lives, however it dies; its end ends this process too.
    But a *stopped* process reads nothing: on Linux the kernel kills it when its parent dies (prctl(2),
    PR_SET_PDEATHSIG); elsewhere it is sent SIGHUP and SIGCONT when its process group is orphaned
    (POSIX, _Exit), and both end it, for the story gives each process a group of its own.
    """
    end_with_the_parent()
    line = b""
    while not line.endswith(b"\n"):
        # By single bytes and unbuffered: what follows the line belongs to `_leave_at_the_end`.
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)  # the story died before it could say a word
        line += byte
    threading.Thread(target=_leave_at_the_end, name="end-with-the-story", daemon=True).start()
    brief: dict[str, Any] = json.loads(line)
    return brief


def end_with_the_parent() -> None:
    """Have the kernel kill this process when its parent dies, also while it is stopped: on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave_at_the_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


_speaking: Final = threading.Lock()


def tell(event: str, **data: Any) -> None:
    """Say one thing to the story, and when: one line of JSON on standard output. Thread-safe."""
    line = json.dumps({"event": event, "t": now(), **data}).encode() + b"\n"
    with _speaking:
        os.write(1, line)
