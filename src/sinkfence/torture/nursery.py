"""A process that has imported what a worker needs, and forks it off: having another one costs little."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, Final

from sinkfence.demo import child
from sinkfence.torture import worker
from sinkfence.torture.places import Bucket

PR_SET_PDEATHSIG: Final = 1


class Nursery:
    """Has one worker at a time, and does to it what it is told."""

    def __init__(self) -> None:
        self._pid = 0

    def start(self, brief: dict[str, Any]) -> None:
        """Fork a worker."""
        self._pid = os.fork()
        if not self._pid:
            if sys.platform == "linux":  # it ends with this process, however that ends
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            worker.work(brief)

    def kill(self) -> bool:
        """SIGKILL; return once it has gone, and whether it was there."""
        return self._signal(signal.SIGKILL, 0, os.WIFSIGNALED)

    def stop(self) -> bool:
        """SIGSTOP; return once every thread of it stands, and whether it was there."""
        return self._signal(signal.SIGSTOP, os.WUNTRACED, os.WIFSTOPPED)

    def resume(self) -> bool:
        """SIGCONT."""
        os.kill(self._pid, signal.SIGCONT)
        return True

    def _signal(self, number: int, options: int, as_told: Any) -> bool:
        if not self._pid:
            return True
        os.kill(self._pid, number)
        _, status = os.waitpid(self._pid, options)
        if not os.WIFSTOPPED(status):
            self._pid = 0
        return bool(as_told(status))


def main() -> None:
    """Obey standard input, one line of JSON after the other; its end ends all."""
    nursery = Nursery()
    # botocore reads its descriptions of services from files once: those who are forked have them.
    Bucket("", "http://127.0.0.1", "us-east-1", "", "").client()
    child.tell("ready")
    for line in sys.stdin:
        told = json.loads(line)
        if told["do"] == "start":
            nursery.start(told["brief"])
            child.tell("done", alive=True)
        else:
            child.tell("done", alive=getattr(nursery, told["do"])())
    nursery.kill()


if __name__ == "__main__":
    main()
