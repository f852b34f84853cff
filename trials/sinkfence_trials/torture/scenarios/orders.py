"""The worker's half of its orders: a brief, then one order after the other, each with an answer."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sinkfence_trials.demo import child

Order = dict[str, Any]


def orders() -> Iterator[Order]:
    """Yield the brief, and the orders after it; this process ends with its scenario, in an order too."""
    child.end_with_the_parent()
    given: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            given.put(line)
        os._exit(1)

    threading.Thread(target=read, name="orders", daemon=True).start()
    while True:
        yield json.loads(given.get())


def obey(given: Iterator[Order], commands: dict[str, Callable[..., Order]]) -> None:
    """Do what is ordered, for ever; an error that a command raises is its answer."""
    for order in given:
        do = order.pop("do")
        try:
            answer = commands[do](**order)
        except Exception as error:  # noqa: BLE001 - whatever it is, the scenario has to hear of it
            answer = {"error": type(error).__name__, "said": str(error)}
        child.tell(do, **answer)
