"""What is done to servers of ours, one thing after the other, while workers work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from sinkfence_trials.history import History

GAPS: Final = (1.0, 4.0)
"""Seconds between one and the next."""

Outage = Callable[[], bool | None]
"""Returns, when the server serves again, False if it did not take place after all."""


class Server(Protocol):
    """What can be killed, all its processes at once, and comes back with what it had acknowledged."""

    def kill(self) -> None:
        """SIGKILL it; return when it has gone."""
        ...

    def start(self) -> None:
        """Start it again, where it was; return when it serves."""
        ...


def killed(server: Server) -> Outage:
    """Kill a server, and start it again."""

    def outage() -> None:
        server.kill()
        server.start()

    return outage


class ServerNemesis:
    """A thread with a shuffled hand of outages, by their kinds, until it is told to heal."""

    def __init__(self, outages: dict[str, Outage], seed: str, diary: History) -> None:
        self._outages, self._diary = outages, diary
        self._dice = random.Random(seed)  # noqa: S311 - dice, and no secret
        self._healing, self._over = threading.Event(), threading.Event()
        self._healed = threading.Event()
        self.died_of: Exception | None = None
        """What ended its thread before it was told to end: then a server may be down."""
        self._thread = threading.Thread(target=self._work, name="server nemesis", daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """Have it stop, and wait until all servers run, or it has died."""
        self._healing.set()
        self._healed.wait()

    def close(self) -> None:
        """End it, once the servers are needed no more: on Linux those that it has started end with it."""
        self._healing.set()
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            hand: list[str] = []
            while self._outages and not self._healing.wait(self._dice.uniform(*GAPS)):
                hand = hand or self._dice.sample(list(self._outages), len(self._outages))
                self._do(hand.pop())
        except Exception as error:  # noqa: BLE001 - whatever it is, a server is down: L1 would be blamed
            self.died_of = error
        finally:
            self._healed.set()
        self._over.wait()

    def _do(self, kind: str) -> None:
        told: dict[str, Any] = {"kind": kind, "target": kind.rpartition(" ")[0]}
        self._diary.add("fault", "invoke", "", **told)
        took_place = self._outages[kind]()
        self._diary.add("fault", "fail" if took_place is False else "ok", "", **told)
