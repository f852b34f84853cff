"""One worker's process in a scene: what it was given, when it pauses, and what it has heard."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg

TTL = 1.0
"""Seconds that a lease lasts, or that a silent worker is believed to be at work."""
PATIENCE = 60.0
"""Seconds that the second worker waits for its turn."""
TABLE = "create table doc (id int primary key, body text, fence bigint not null default 0)"
PLAIN = "update doc set body = %s where id = 1"


@dataclass
class Stage:
    """What a worker has of the scene. `role` is whose process it is: `first` or `second`."""

    dsn: str
    redis: str | None
    role: str
    heard: list[str] = field(default_factory=list)

    def inside(self) -> None:
        """Tell that the job is held, and wait until the scene goes on: the first one is stopped here."""
        print("inside", flush=True)
        sys.stdin.readline()

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Keep what this worker is told of its attempt, and go on."""
        try:
            yield
        except Exception as error:
            self.heard.append(f"{what}: {type(error).__name__}")

    def write(self) -> None:
        """Write to the user's own table, with nothing to be compared."""
        with psycopg.connect(self.dsn) as conn:
            conn.execute(PLAIN, (self.role,))

    def end(self) -> None:
        """Tell what was heard."""
        print("end " + json.dumps(self.heard), flush=True)
