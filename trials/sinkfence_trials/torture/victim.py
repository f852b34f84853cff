"""One worker and the networks in its way, and what can be done to them."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Literal

import psycopg

from sinkfence_trials.torture.clocks import environment, jump
from sinkfence_trials.torture.destinations import WRITES
from sinkfence_trials.torture.nursery import Nursery, Nursling
from sinkfence_trials.torture.proxy import FaultProxy
from sinkfence_trials.torture.stops import Stop

WAIT: Final = 5.0
"""Seconds that a fault waits for a job to be held, or for a message to hold."""

Moment = Literal["taken over", "written"]
"""Once a successor has the job; or once its effects are there."""

TAKEN: Final = {
    "taken over": "SELECT generation > %(generation)s FROM sinkfence_lease WHERE job_id = %(job)s",
    "written": "SELECT true FROM torture_entry WHERE job_id = %(job)s AND generation > %(generation)s"
    " LIMIT 1",
}


class Victim:
    """A worker process, its proxies, and a look at the store."""

    def __init__(
        self,
        name: str,
        brief: dict[str, Any],
        upstreams: dict[str, tuple[str, int]],
        dsn: str,
        *,
        clock: Path | None,
        nursery: Nursery,
    ) -> None:
        self.name = name
        self._brief, self._dsn, self._clock = brief, dsn, clock
        self._stack = ExitStack()
        self.proxies: dict[str, FaultProxy] = {
            sink: self._stack.enter_context(FaultProxy(*to)) for sink, to in upstreams.items()
        }
        self._nursery = nursery
        self._variables = environment(clock) if clock else {}
        self._worker: Nursling | None = None
        self._conn: psycopg.Connection[Any] | None = None

    def start(self) -> None:
        """Start the worker, or another one in its place."""
        detours = {sink: list(proxy.address) for sink, proxy in self.proxies.items()}
        self._worker = self._nursery.start(self.name, "worker", self._variables)
        self._worker.begin(self._brief | {"detours": detours})

    def kill(self) -> None:
        """SIGKILL it; return when it has gone.

        Raises:
            ProcessFailed: it had ended by itself.
        """
        if self._worker is not None:
            with self._worker as worker:
                worker.kill()

    def close(self) -> None:
        """End it all."""
        with self._stack:
            if self._conn is not None:
                self._conn.close()
            self.kill()

    def heal(self) -> None:
        """Hold nothing any more."""
        for proxy in self.proxies.values():
            proxy.forget()
        self.jump("+0")

    # Faults: each returns whether it took place.

    def pause(self, until: Moment, patience: float) -> bool:
        """SIGSTOP, until what it held has gone to somebody else."""
        held = self._holds()
        assert self._worker is not None
        self._worker.stop()
        try:
            return bool(held) and self.wait(held, until, patience)
        finally:
            self._worker.go_on()

    def hold(self, sink: str, until: Moment, patience: float) -> bool:
        """Keep a request on its way, until it is late."""
        stop = self._caught(sink, "request")
        if stop is None:
            return False
        try:
            return self.wait(self.held(), until, patience)
        finally:
            stop.release()

    def reset(self, sink: str) -> bool:
        """Let a request through, and reset the connection in place of its reply."""
        stop = self._caught(sink, "reply")
        if stop is not None:
            stop.cut()
        return stop is not None

    def zombie(self, sink: str, until: Moment, patience: float) -> bool:
        """Hold a request, kill its sender, and deliver it when somebody else has the job."""
        held = self._holds()
        stop = self._caught(sink, "request")
        if stop is None:
            return False
        held = self.held() or held
        self.kill()
        try:
            return bool(held) and self.wait(held, until, patience)
        finally:
            stop.release()
            self.start()

    def die(self) -> bool:
        """SIGKILL, and another one in its place."""
        self.kill()
        self.start()
        return True

    def jump(self, offset: str) -> bool:
        """Set the worker's wall clock off, from one moment to the next."""
        if self._clock is None:
            return False
        jump(self._clock, offset)
        return True

    # What the store and the table show

    def held(self) -> dict[str, int]:
        """The jobs that this worker holds now, and their generations."""
        query = (
            "SELECT job_id, generation FROM sinkfence_lease"
            " WHERE owner LIKE %s AND state = 'open' AND lease_until > clock_timestamp()"
        )
        return dict(self._ask(query, (f"{self.name}:%",)))

    def _holds(self) -> dict[str, int]:
        end = time.monotonic() + WAIT
        while not (held := self.held()) and time.monotonic() < end:
            time.sleep(0.02)
        return held

    def wait(self, held: dict[str, int], until: Moment, patience: float) -> bool:
        """Wait until all that was held has come so far; False: it did not, within `patience` seconds."""
        end = time.monotonic() + patience
        while held and time.monotonic() < end:
            rows = [
                self._ask(TAKEN[until], {"job": job, "generation": number}) for job, number in held.items()
            ]
            if all(row == [(True,)] for row in rows):
                return True
            time.sleep(0.02)
        return False

    def _ask(self, query: str, params: Any) -> list[Any]:
        with suppress(psycopg.Error):  # the server is down
            if self._conn is None or self._conn.closed:
                self._conn = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
            return self._conn.execute(query.encode(), params).fetchall()
        return []

    def _caught(self, sink: str, direction: Literal["request", "reply"]) -> Stop | None:
        beginning = WRITES.get(sink, b"") if direction == "request" else b""
        stop = self.proxies[sink].next(direction, beginning)
        if stop.frozen.wait(WAIT):
            return stop
        stop.release()
        return None
