"""The program of a worker of the scenarios: it does what it is ordered, and suffers its plights."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from sinkfence_trials.torture.scenarios.orders import obey, orders
from sinkfence_trials.torture.scenarios.plights import PLIGHTS
from sinkfence_trials.torture.scenarios.worker import Worker


def main() -> None:
    """Do what is ordered."""
    logging.disable()  # the answers tell what the log would
    given = orders()
    worker = Worker(next(given))
    names = ("hold", "write", "try_hold", "leave", "tell_time")
    commands: dict[str, Any] = {name: getattr(worker, name) for name in names}
    commands |= {name: partial(plight, worker) for name, plight in PLIGHTS.items()}
    obey(given, commands)
