"""A process that has imported what workers need, and forks them off: another one costs little.

It has one thread and one order at a time, so that what it forks is whole.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from sinkfence_trials.demo import child
from sinkfence_trials.torture import worker
from sinkfence_trials.torture.places import Bucket
from sinkfence_trials.torture.scenarios import acting, crowding

PROGRAMS: Final = {"worker": worker.main, "actor": acting.main, "crowd": crowding.main}


def start(program: str, port: int, variables: dict[str, str]) -> dict[str, Any]:
    """Fork a worker, which reads and writes as a process of its own would."""
    pid = os.fork()
    if not pid:
        run(program, port, variables)
    return {"pid": pid}


def run(program: str, port: int, variables: dict[str, str]) -> NoReturn:
    """Be a worker: standard input and output lead to a port of 127.0.0.1."""
    code = 1
    try:
        child.end_with_the_parent()
        with socket.create_connection(("127.0.0.1", port)) as line:
            os.dup2(line.fileno(), 0)
            os.dup2(line.fileno(), 1)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - what the other one had read ahead is not for us
        os.environ.update(variables)
        PROGRAMS[program]()
        code = 0
    except BaseException:  # noqa: BLE001 - above us there is only what we were forked from
        traceback.print_exc()
    os._exit(code)


def send(pid: int, number: int) -> dict[str, Any]:
    """Send a signal, wait until it has had its effect, and tell whether the worker was there to have it."""
    os.kill(pid, number)
    if number == signal.SIGCONT:
        return {"alive": True}
    _, status = os.waitpid(pid, os.WUNTRACED if number == signal.SIGSTOP else 0)
    return {"alive": os.WIFSTOPPED(status) or os.WIFSIGNALED(status)}


def main() -> None:
    """Obey standard input, one line of JSON after the other; what was forked ends with this process."""
    child.end_with_the_parent()
    # What is read from files, or imported, on first use: those who are forked have it.
    Bucket("", "http://127.0.0.1", "us-east-1", "", "").client()
    for name in (
        "sqlalchemy.dialects.postgresql.psycopg",
        "sinkfence.stores.sql.aio",
        "sinkfence_postgres.aio",
    ):
        importlib.import_module(name)
    child.tell("ready")
    orders: dict[str, Callable[..., dict[str, Any]]] = {"start": start, "send": send}
    for line in sys.stdin:
        order = json.loads(line)
        child.tell("done", **orders[order.pop("do")](**order))


if __name__ == "__main__":
    main()
