"""Many processes that want one job: each asks, is told that it is held, waits, and has it once."""

from __future__ import annotations

import logging
import os

from sinkfence_trials.demo import child
from sinkfence_trials.torture.scenarios.orders import Order, orders
from sinkfence_trials.torture.scenarios.worker import Worker

WAIT = 120.0
"""Seconds that each is ready to wait."""


def one(brief: Order) -> None:
    """One of the many, from its first question to its release."""
    worker = Worker(brief)
    heard = worker.try_hold()
    child.tell("asked", **heard)
    worker.hold(wait=WAIT)
    child.tell("done", outcome=worker.write()["outcome"], generation=worker.token.generation)
    worker.leave()


def main() -> None:
    """Fork as many as the brief says, and wait for them."""
    logging.disable()
    given = orders()
    brief, _go = next(given), next(given)
    Worker(brief).store_now()  # so that what is imported on first use is imported once, and not by each
    children: list[int] = []
    for number in range(brief["many"]):
        if (pid := os.fork()) == 0:
            child.end_with_the_parent()
            one({**brief, "name": f"acquirer {number}"})
            os._exit(0)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    child.tell("over", failed=sum(code != 0 for code in codes))
