"""A worker as the scenario has it in hand: a real process that does what it is told, one order at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sinkfence_trials.demo.process import PATIENCE, Event, ProcessFailed
from sinkfence_trials.torture.nursery import Nursling


class Actor:
    """A worker of `sinkfence_trials.torture.scenarios`; its answers are events named after the orders."""

    def __init__(self, process: Nursling) -> None:
        self.name: str = process.name
        self.process: Nursling = process
        self.until: float = 0.0
        """When the lease that it holds ended, as it was told when it got it; by the store's clock."""

    def hear(self, *events: str) -> Event:
        """Wait for its next word; as `Nursling.hear`."""
        return self.process.hear(*events)

    def order(self, do: str, **how: Any) -> None:
        """Give an order, and do not wait for the answer."""
        self.process.begin({"do": do, **how})

    def does(self, do: str, **how: Any) -> Event:
        """Give an order and wait for the answer."""
        self.order(do, **how)
        return self.hear(do)

    def holds(self) -> int:
        """Have it hold the job as soon as it can be had, and return the generation.

        Raises:
            ProcessFailed: it could not.
        """
        answer = self.does("hold", wait=PATIENCE)
        if "generation" not in answer:
            raise ProcessFailed(f"{self.name} does not get the job: {answer}")
        self.until = float(answer["until"])
        return int(answer["generation"])

    def wait_until_it_waits(self) -> None:
        """Return when its main thread sleeps in the kernel: it has written all that it was about to write.

        Raises:
            TimeoutError: it does not.
        """
        pid = self.process.pid
        stat = Path(f"/proc/{pid}/task/{pid}/stat")
        deadline = time.monotonic() + PATIENCE
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "S":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} does not wait for an answer")
            time.sleep(0.005)
