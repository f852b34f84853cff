"""What happened in the story, as lines of a history: the format is that of `sinkfence_trials.history`.

A worker tells when it began and what it was answered; that something took effect is not taken from its word,
but seen at the destination.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from sinkfence_trials.demo.effects import EFFECTS
from sinkfence_trials.demo.places import JOB, STEP

Line = dict[str, Any]

SEEN_AT: Final = {"transaction": "PostgreSQL", "upload": "S3", "request": "HTTP service"}
"""The destinations, by effect; the completion is the lease store's."""


def now() -> float:
    """The history's clock."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(slots=True)
class Record:
    """The history of one telling."""

    _lines: list[Line] = field(default_factory=list[Line])
    _tokens: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def lines(self) -> list[Line]:
        """The events in the order in which they happened."""
        return sorted(self._lines, key=lambda line: line["t"])

    def stop(self, type: str) -> None:
        """Record that worker A is stopped ("invoke"), or continued ("ok")."""
        self._add(now(), "the story", "fault", type, job="", kind="stopped", target="worker A")

    def acquired(self, worker: str, word: Line, *, armed: bool) -> None:
        """Record a worker's acquisition, from its own word."""
        self._tokens[worker] = word["generation"], word["owner"]
        self._add(word["asked"], worker, "acquire", "invoke")
        self._grant(worker, "acquire", word)
        if armed:
            for sink in SEEN_AT.values():
                self._of(worker, word["t"], "arm", "ok", sink=sink)

    def renewed(self, worker: str, word: Line) -> None:
        """Record that a worker's lease has another end."""
        self._of(worker, word["asked"], "renew", "invoke")
        self._grant(worker, "renew", word)

    def outcome(self, worker: str, word: Line, *, there: bool, clock: float) -> None:
        """Record what a worker was answered, whether the effect was there then, and the store's clock."""
        effect, refusal = word["effect"], word["outcome"]["refusal"]
        error = {"error": refusal} if refusal else {}
        if effect == "completion":
            self._of(worker, word["began"], "complete", "invoke")
            done = error or {"now": clock}
            self._of(worker, now(), "complete", "fail" if refusal else "ok", **done)
            return
        write: Line = {"sink": SEEN_AT[effect], "id": f"{worker}'s {EFFECTS[effect].sent}"}
        if effect == "upload":
            write["base"] = None  # each of them read the document before there was one
        self._of(worker, word["began"], "write", "invoke", key=STEP, **write)
        if there:
            self._of(worker, word["t"], "effect", "ok", key=STEP, **write)
        self._of(worker, word["t"], "write", "fail" if refusal else "ok", key=STEP, **write, **error)

    def _grant(self, worker: str, f: str, word: Line) -> None:
        # Nobody looked at the store's clock: the grant was a ttl before its end.
        until, ttl = word["until"], word["ttl"]
        self._of(worker, word["t"], f, "ok", now=until - ttl, until=until, ttl=ttl)

    def _of(self, worker: str, t: float, f: str, type: str, *, key: str | None = None, **value: Any) -> None:
        generation, owner = self._tokens[worker]
        self._add(t, worker, f, type, generation=generation, key=key, owner=owner, **value)

    def _add(
        self,
        t: float,
        p: str,
        f: str,
        type: str,
        *,
        job: str = JOB,
        generation: int | None = None,
        key: str | None = None,
        **value: Any,
    ) -> None:
        self._lines.append(
            {
                "t": t,
                "p": p,
                "f": f,
                "type": type,
                "job": job,
                "generation": generation,
                "key": key,
                "value": value,
            }
        )
