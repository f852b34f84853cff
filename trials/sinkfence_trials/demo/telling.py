"""What happened in the story, as a history.

A worker tells when it began and what it was answered; that something took effect is not taken from its word,
but seen at the destination.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sinkfence_trials.demo.effects import ACCEPTED, EFFECTS
from sinkfence_trials.demo.places import JOB, STEP
from sinkfence_trials.history import Event, Type, now

SEEN_AT: Final = {"transaction": "PostgreSQL", "upload": "S3", "request": "HTTP service"}
"""The destinations, by effect; the completion is the lease store's."""

UNDER_WAY: Final = {"worker A": ("transaction", "upload")}
"""What had begun when its worker was stopped, and had not left it. The request had."""

Word = dict[str, Any]
"""What a worker told, and when."""


@dataclass(slots=True)
class Telling:
    """The history of one telling."""

    events: list[Event] = field(default_factory=list[Event])
    _tokens: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    _continued: float = 0.0

    def history(self) -> list[Event]:
        """The events in the order in which they happened."""
        return sorted(self.events, key=lambda event: event.t)

    def stop(self, type: Type) -> None:
        """Record that worker A is about to be stopped ("invoke"), or continued ("ok")."""
        self._continued = now()
        value = {"kind": "stopped", "target": "worker A"}
        self.events.append(Event(self._continued, "the story", "fault", type, "", value=value))

    def acquired(self, worker: str, word: Word, *, armed: bool) -> None:
        """Record a worker's acquisition."""
        self._tokens[worker] = word["generation"], word["owner"]
        self.granted(worker, "acquire", word)
        for sink in SEEN_AT.values() if armed else ():
            self._add(worker, word["t"], "arm", "ok", sink=sink)

    def granted(self, worker: str, f: str, word: Word) -> None:
        """Record that a worker's lease has a new end."""
        until, ttl = word["until"], word["ttl"]
        self._add(worker, word["asked"], f, "invoke")
        # Nobody looked at the store's clock: the grant was a ttl before its end.
        self._add(worker, word["t"], f, "ok", now=until - ttl, until=until, ttl=ttl)

    def completed(self, worker: str, word: Word, clock: float) -> None:
        """Record what a worker's completion was answered; and what the store's clock says by now."""
        t, outcome = word["t"], word["outcome"]
        self._add(worker, word["began"], "complete", "invoke")
        if outcome == ACCEPTED:
            self._add(worker, t, "complete", "ok", now=clock - (now() - t))
        else:
            self._add(worker, t, "complete", "fail", error=outcome.removeprefix("REFUSED: "))

    def wrote(self, worker: str, word: Word, *, there: bool) -> None:
        """Record what a worker was answered at a destination, and whether the effect was there then."""
        effect, t, outcome = word["effect"], word["t"], word["outcome"]
        write: Word = {"sink": SEEN_AT[effect], "id": f"{worker}'s {EFFECTS[effect].sent}"}
        if effect in UNDER_WAY.get(worker, ()):
            write["sent"] = self._continued
        if effect == "upload":
            write["base"] = None  # each of them read the document before there was one
        self._add(worker, word["began"], "write", "invoke", STEP, **write)
        if there:
            self._add(worker, t, "effect", "ok", STEP, **write)
        if outcome == ACCEPTED:
            self._add(worker, t, "write", "ok", STEP, **write)
        else:
            self._add(worker, t, "write", "fail", STEP, **write, error=outcome.removeprefix("REFUSED: "))

    def _add(self, worker: str, t: float, f: str, type: Type, key: str | None = None, **value: Any) -> None:
        generation, owner = self._tokens[worker]
        self.events.append(Event(t, worker, f, type, JOB, generation, key, {"owner": owner, **value}))
