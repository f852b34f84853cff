"""The nemesis: a thread for each worker, which does to it what its dice say, until it is told to heal."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import Any, Final

from sinkfence_trials.history import History
from sinkfence_trials.torture.victim import Moment, Victim

KINDS: Final = ("pause", "hold", "reset", "zombie", "kill", "clock jump")
"""What is done to workers and their networks."""

SUCCEEDED: Final = ("pause", "hold", "zombie")
"""Those that wait for a successor."""

TTLS_TO_WAIT: Final = 10
"""How many ttls a fault waits for a successor; mostly it is one or two."""

JUMPS: Final = ("+600", "-600", "+60", "-60")
"""Seconds: far beyond any lease, and within the 15 minutes that S3 lets a signature be off."""

GAPS: Final = (0.3, 1.5)
"""Seconds between one fault and the next."""

NETWORKS: Final = ("postgres", "s3", "http", "store")


class Nemesis:
    """The faults of one worker. The same seed is the same dice, and not the same run.

    `others` lets so many at once wait for a successor that one is left to be it.
    """

    def __init__(
        self,
        name: str,
        victim: Callable[[], Victim],
        *,
        kinds: tuple[str, ...],
        networks: tuple[str, ...] = NETWORKS,
        moments: tuple[Moment, ...] = ("taken over", "written"),
        gaps: tuple[float, float] = GAPS,
        seed: str,
        ttl: float,
        others: threading.Semaphore,
        diary: History,
    ) -> None:
        self._make, self._diary, self._others = victim, diary, others
        self._kinds, self._networks, self._moments = kinds, networks, moments
        self._gaps, self._ttl = gaps, ttl
        self._dice = random.Random(seed)  # noqa: S311 - dice, and no secret
        self._hand: list[str] = []
        self._healing, self._over = threading.Event(), threading.Event()
        self.ready: threading.Event = threading.Event()
        self.healed: threading.Event = threading.Event()
        self.name: str = name
        self.died_of: Exception | None = None
        """What ended its thread before it was told to end: a worker that has ended by itself, or anything."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """Have it stop after the fault that is under way."""
        self._healing.set()

    def end(self) -> None:
        """Have the worker killed, and the proxies closed."""
        self._over.set()

    def join(self) -> None:
        """Wait until that is done."""
        self._thread.join()

    def _work(self) -> None:
        try:
            with closing(self._make()) as victim:
                victim.start()
                self.ready.set()
                while not self._healing.wait(self._dice.uniform(*self._gaps)):
                    if self._kinds:
                        self._do(self._draw(), victim)
                victim.heal()
                self.healed.set()
                self._over.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, no fault comes any more: a run has to say so
            self.died_of = error
        finally:
            self.ready.set()
            self.healed.set()

    def _draw(self) -> str:
        # A shuffled hand of all kinds, and another one: each comes soon, and none can be foreseen.
        if not self._hand:
            self._hand = list(self._kinds)
            self._dice.shuffle(self._hand)
        return self._hand.pop()

    def _do(self, kind: str, victim: Victim) -> None:
        """Do one thing, and write down whether it took place."""
        dice = self._dice
        sink = dice.choice(self._networks)
        until: Moment = dice.choice(self._moments)
        patience = self._ttl * TTLS_TO_WAIT
        act: Callable[[], bool] = {
            "pause": lambda: victim.pause(until, patience),
            "hold": lambda: victim.hold(sink, until, patience),
            "reset": lambda: victim.reset(sink),
            "zombie": lambda: victim.zombie(sink, until, patience),
            "kill": victim.die,
            "clock jump": lambda: victim.jump(dice.choice(JUMPS)),
        }[kind]
        told: dict[str, Any] = {"kind": kind, "target": victim.name}
        if kind in ("hold", "reset", "zombie"):
            told["sink"] = sink
        self._diary.add("fault", "invoke", "", **told)
        with self._others if kind in SUCCEEDED else nullcontext():
            took_place = act()
        self._diary.add("fault", "ok" if took_place else "fail", "", **told)
