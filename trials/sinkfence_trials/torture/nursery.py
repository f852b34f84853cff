"""Where workers come from: forked by a process that is warm, and in hand like a process of one's own."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

from sinkfence_trials.demo.process import PATIENCE, Event, Process, ProcessFailed, Words

MODULE: Final = "sinkfence_trials.torture.nursing"


class Nursery:
    """Starts workers. What they are forked from is started when it is first wanted, and ends with `close`.

    There may be two of it: libfaketime has to be loaded by a process when it begins. Whose wall clock is to
    be real is forked from one that has not loaded it.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._warm: dict[str | None, Process] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End it, and all workers with it."""
        self._stack.close()

    def warm(self, variables: Mapping[str, str]) -> None:
        """Start what workers with these variables are forked from; in the main thread (see `Process`)."""
        library = variables.get("LD_PRELOAD")
        if library not in self._warm:
            process = self._stack.enter_context(Process("the nursery", MODULE, variables))
            process.hear("ready")
            self._warm[library] = process

    def start(self, name: str, program: str, variables: Mapping[str, str]) -> Nursling:
        """Start a worker."""
        self.warm(variables)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            library, port = variables.get("LD_PRELOAD"), listener.getsockname()[1]
            told = self.tell(library, do="start", program=program, port=port, variables=dict(variables))
            listener.settimeout(PATIENCE)
            line, _ = listener.accept()
        line.settimeout(None)
        return Nursling(name, self, library, told["pid"], line)

    def tell(self, library: str | None, **order: Any) -> Event:
        """Have something done by what was started with a library."""
        with self._lock:
            self._warm[library].begin(order)
            return self._warm[library].hear("done")

    def last_complaint(self, library: str | None) -> str:
        """What was last written to standard error, by any of them."""
        return self._warm[library].last_complaint()


class Nursling:
    """One worker, as `sinkfence_trials.demo.process.Process`; of whatever threads."""

    def __init__(
        self, name: str, nursery: Nursery, library: str | None, pid: int, line: socket.socket
    ) -> None:
        self.name: str = name
        self.pid: int = pid
        self._nursery, self._library, self._line = nursery, library, line
        self._gone = False
        self._words = Words(name, line.makefile("rb"), lambda: nursery.last_complaint(library))

    def begin(self, brief: Mapping[str, Any]) -> None:
        """Tell it something; if it has ended instead, `hear` will say so."""
        with suppress(OSError):
            self._line.sendall(json.dumps(brief).encode() + b"\n")

    def hear(self, *events: str) -> Event:
        """As `Words.hear`."""
        return self._words.hear(*events)

    def stop(self) -> None:
        """SIGSTOP it, and return once every thread of it stands.

        Raises:
            ProcessFailed: it had ended.
        """
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT it."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL it, and return when it has gone.

        Raises:
            ProcessFailed: it had ended by itself.
        """
        if not self._gone:
            self._gone = True
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if not self._nursery.tell(self._library, do="send", pid=self.pid, number=number)["alive"]:
            self._gone = True
            complaint = self._nursery.last_complaint(self._library)
            raise ProcessFailed(f"{self.name} ended by itself: {complaint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessFailed):  # who has ended by itself is heard of, or was to
            self.kill()
        self._words.close()
        self._line.close()
