"""A process of the story from without: started, heard, stopped, continued, and gone at the end."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Final, Self

PATIENCE: Final = 60.0
"""Seconds that the story waits for a word before it gives up: no timing is expected, only an end."""

Event = dict[str, Any]
"""What a process said: its `event`, and what belongs to it."""


class ProcessFailed(Exception):
    """A process of the story ended, or fell silent, before it had said what the story waits for."""


class Words:
    """What a process says, line by line, as a thread of ours reads it."""

    def __init__(self, name: str, lines: IO[bytes], complaint: Callable[[], str]) -> None:
        self._name, self._lines, self._complaint = name, lines, complaint
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name=f"listen to {name}", daemon=True)
        self._listener.start()

    def hear(self, *events: str) -> Event:
        """Wait for its next word, which must be one of `events`, and return it.

        Raises:
            ProcessFailed: it said something else, ended, or was silent for too long.
        """
        try:
            line = self._said.get(timeout=PATIENCE)
        except queue.Empty:
            raise ProcessFailed(f"{self._name} said nothing for {PATIENCE:.0f} s") from None
        if not line:
            raise ProcessFailed(f"{self._name} ended early: {self._complaint()}")
        event: Event = json.loads(line)
        if event["event"] not in events:
            raise ProcessFailed(f"{self._name} told of {event}, and not of {' or '.join(events)}")
        return event

    def close(self) -> None:
        """Wait for its end, and close what it was heard by."""
        self._listener.join()
        self._lines.close()

    def _listen(self) -> None:
        with suppress(OSError):
            for line in self._lines:
                self._said.put(line)
        self._said.put(b"")


class Process:
    """A Python module that waits for its brief, imported already; see `child` for its own half.

    Use it in a `with`, and in the main thread: on Linux it is killed when the *thread* that started it ends.
    `environment` is added to our own.
    """

    def __init__(self, name: str, module: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        # Without a name: nothing of it can be left on disk.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            # -P: whatever lies in the user's current folder is not to be imported.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            process_group=0,  # Ctrl-C in a terminal is for the story, which then ends its processes
            env={**os.environ, **(environment or {})},
        )
        self.pid: int = self._process.pid
        assert self._process.stdout is not None
        self._words = Words(name, self._process.stdout, self.last_complaint)

    def begin(self, brief: Mapping[str, Any]) -> None:
        """Let it begin. If it has ended instead, `hear` will say so."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(brief).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, *events: str) -> Event:
        """As `Words.hear`."""
        return self._words.hear(*events)

    def stop(self) -> None:
        """Stop it by SIGSTOP, and return once the kernel reports that every thread of it stands.

        Raises:
            ProcessFailed: it had ended.
        """
        os.kill(self._process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise ProcessFailed(f"{self.name} ended before it could be stopped: {self.last_complaint()}")

    def go_on(self) -> None:
        """Continue it by SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)

    def last_complaint(self) -> str:
        """The last line that it has written to standard error."""
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "without a word")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # SIGKILL reaches a stopped process too
        self._process.wait()
        self._words.close()
        for pipe in (self._process.stdin, self._complaints):
            assert pipe is not None
            pipe.close()
