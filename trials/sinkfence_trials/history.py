"""What a run did, one JSON line per event, in a file per process.

`t` is CLOCK_MONOTONIC in seconds, one clock for all processes of a host. `p` says who (one thread of one
process: it does one thing at a time), `f` what, and `type` how far it got: `invoke`, then `ok`, `fail`
(known not to have happened) or `info` (unknown). The rest depends on `f`:

- `acquire`, `renew`, `complete`, `release`: `owner`; the generation that was granted or shown. An `ok`
  has the store's clock in seconds: `now`, and for a grant `until` and `ttl`. An `ok` of renew whose
  generation differs from the one that was shown has that as `asked`.
- `failover`, with an empty job: `invoke` before the store goes over to a standby or a backup, `ok` after;
  `lossy` where that lacks something that was acknowledged; `now` by the store's clock, where that is known.
- `arm`: the token's generation, `owner`.
- `write`: the token's generation, the step's key, `owner`, `id` of the attempt, and `base`, the id of the
  write that it read, where it builds on one; `sent`, where it is known when it left a worker that had begun
  it before.
- `effect`: what the truth shows, in the order in which it was applied: as `write`; its `t` is no later
  than that.
- `read`: as `arm`, before a write; `fail` where that owner is refused there.
- `mark`: the destination's mark, after the effects that were observed before it.
- `trace`: the `id` of an attempt that left something, and `where`.
- `fault`, with an empty job: what was done (`kind`), to whom (`target`); `fail` where it could not be done.
- `heal`, with an empty job: from here on nothing is done to anybody.

Where a job has several destinations, `arm`, `read`, `write`, `effect`, `mark` and `trace` say which: `sink`.
A `fail` and an `info` may name the `error`.

`effect`, `mark` and `trace` come from an observer that no sink can skip: a trigger, the service's own log, a
recording proxy. An observer of the store gives the `ok` of its changes, with `now`; those of its clients then
have no `now`, and are held against each other by the clock of the history.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

Type = Literal["invoke", "ok", "fail", "info"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    t: float
    p: str
    f: str
    type: Type
    job: str
    generation: int | None = None
    key: str | None = None
    value: dict[str, Any] = field(default_factory=dict[str, Any])

    def line(self) -> str:
        """The event as JSON, without the fields that it has not."""
        filled = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({name: value for name, value in filled.items() if value not in (None, {})})

    @classmethod
    def read(cls, line: str) -> Self:
        """Read one line; ValueError or TypeError when it is none."""
        return cls(**json.loads(line))


class History:
    """Appends one process's events to its file, each in one write: a killed process leaves whole lines."""

    def __init__(self, path: Path, process: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(
        self,
        f: str,
        type: Type,
        job: str,
        generation: int | None = None,
        key: str | None = None,
        **value: Any,
    ) -> None:
        """Write down what happens now."""
        self.write(Event(now(), self._process, f, type, job, generation, key, value))

    def write(self, event: Event) -> None:
        """Write down what happened."""
        os.write(self._file, event.line().encode() + b"\n")


def now() -> float:
    """The history's clock."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def read(paths: Iterable[Path]) -> Iterator[Event]:
    """All events of some files, in the order in which they happened.

    A file need not be in that order: an observer hears late from a server that was down.
    """
    return iter(sorted((event for path in paths for event in _lines(path)), key=lambda event: event.t))


def _lines(path: Path) -> Iterator[Event]:
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):  # else it is being written at this moment
                yield Event.read(line)
