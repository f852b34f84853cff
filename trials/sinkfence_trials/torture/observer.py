"""The truth of a run, by ways that no sink takes part in: triggers, objects read raw, acknowledgements."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psycopg
from botocore.exceptions import BotoCoreError, ClientError

from sinkfence_trials.history import Event, History, now
from sinkfence_trials.torture.looks import Objects, Rows
from sinkfence_trials.torture.places import Bucket

LOOK_EVERY: Final = 0.1
"""Seconds."""

DOWN: Final = (psycopg.Error, BotoCoreError, ClientError)
"""What comes of looking at a server that is down."""


class Observer:
    """Looks when it is told to, or again and again, and writes down what is new.

    Of each thing it says an instant that is no later than the thing itself: that of the last look that did
    not show it, or a better one where the database's clock gives it.
    """

    def __init__(self, history: History, jobs: list[str]) -> None:
        self._history, self._jobs = history, jobs
        self._at: list[Rows | Objects] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.died_of: Exception | None = None
        """What ended it: it then looks no more, and what is missing since may well be there."""
        self.ttls: dict[str, float] = {}
        """For how long an owner asks, by the label of its owner values, where that is not `TTL`."""

    def look_at(self, place: str | Bucket) -> None:
        """Look at a database, or at the jobs' objects in a bucket, from now on."""
        self._at.append(
            Rows(place, self._jobs, self.ttls) if isinstance(place, str) else Objects(place, self._jobs)
        )

    def watch(self) -> None:
        """Look again and again, on a thread of its own, until `stop`; what is down is looked at again."""
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_EVERY):
                for place in self._at:
                    with suppress(*DOWN):
                        self._write(place.look())
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdict has to hear of it
            self.died_of = error

    def stop(self) -> None:
        """Look no more, but when told to."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Write down what is new, and return whether there was anything.

        Raises:
            psycopg.Error, BotoCoreError, ClientError: what it looks at is down.
        """
        found = [self._write(place.look()) for place in self._places()]
        return any(found)

    def finish(self, patience: float) -> None:
        """Stop, look until there is nothing new, and write down all marks.

        What is down is looked at again for so many seconds; what then is not seen is `died_of`.
        """
        self.stop()
        end = time.monotonic() + patience
        while not self.died_of:
            try:
                if not self.look():
                    self.marks()
                    return
            except DOWN as error:
                if time.monotonic() > end:
                    self.died_of = error
            except Exception as error:  # noqa: BLE001 - as in its thread
                self.died_of = error
            time.sleep(LOOK_EVERY)

    def marks(self) -> None:
        """Write down all marks."""
        for place in self._places():
            self._write(place.marks(now(), self._jobs))

    def close(self) -> None:
        """Stop, and close what it has opened."""
        self.stop()
        for place in self._at:
            place.close()

    def _places(self) -> list[Rows | Objects]:
        # A look past what a dead thread has missed would show a history with a hole: nothing is looked at.
        return [] if self.died_of else self._at

    def _write(self, events: Iterable[Event]) -> bool:
        found = False
        for event in events:
            self._history.write(event)
            found = True
        return found


def acknowledged(events: Iterable[Event]) -> list[Event]:
    """What a service that nobody looks into has done as far as its answers say, as effects.

    Each at the instant at which it was sent: no later than it was applied, wherever that was. What was sent
    before these events begin is left out.
    """
    sent: dict[str, Event] = {}
    found: dict[str, Event] = {}
    for event in events:
        if event.f == "write" and event.value.get("sink") == "http":
            this = event.value["id"]
            if event.type == "invoke":
                sent[this] = event
            elif event.type == "ok" and this in sent:
                value = {name: event.value[name] for name in ("sink", "owner", "id")}
                found[this] = Event(
                    sent[this].t, "observer", "effect", "ok", event.job, event.generation, None, value
                )
    return sorted(found.values(), key=lambda event: event.t)
