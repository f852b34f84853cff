"""What may befall a worker from within: a fork, a C call that keeps the GIL, what blocks its event loop."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

from sinkfence import LeaseLost
from sinkfence_trials.demo import child
from sinkfence_trials.torture.scenarios.worker import Worker

Answer = dict[str, Any]


def opened(path: str) -> int:
    """Open a fifo to read from; opened for both (fifo(7)) it waits for no writer, and has no end."""
    return os.open(path, os.O_RDWR)


def forks(worker: Worker, until: str) -> Answer:
    """Fork; the child tries what it has inherited, waits for a byte, and writes with the token it knows."""
    pid = os.fork()
    if pid:
        return {"pid": pid}
    child.end_with_the_parent()
    lease, heard = worker.lease, dict[str, str]()
    uses: dict[str, Callable[[], object]] = {
        "token": lambda: lease.token,
        "renew": lease.renew,
        "complete": lease.complete,
        "release": lease.release,
    }
    for name, use in uses.items():
        try:
            use()
            heard[name] = "done"
        except LeaseLost:
            heard[name] = "LeaseLost"
    worker.history = worker.open_history(f"{worker.name}'s child")
    worker.leave_connections()
    fifo = opened(until)
    child.tell("inherited", **heard)
    os.read(fifo, 1)
    child.tell("child", **worker.write())
    os._exit(0)


def keep_gil(worker: Worker, until: str) -> Answer:
    """Read from a fifo in C, the GIL held: no thread of this process runs until somebody writes."""
    fifo = opened(until)
    child.tell("inside")
    ctypes.PyDLL(None).read(fifo, ctypes.create_string_buffer(1), 1)
    return {"over": worker.lease.remaining() == 0}


def block_loop(worker: Worker, until: str) -> Answer:
    """Hold the job in an event loop, block the loop until somebody writes to a fifo, then write."""
    from sinkfence import aio
    from sinkfence.stores.sql.aio import SqlStore
    from sinkfence_postgres.aio import PostgresSink

    blocked = False

    async def main() -> Answer:
        nonlocal blocked
        store = SqlStore(worker.store.replace("postgresql:", "postgresql+psycopg:", 1))
        async with aio.Leases(
            store, ttl=worker.ttl, heartbeat=worker.heartbeat, owner=worker.brief["label"]
        ) as leases:
            worker.note("acquire", "invoke")
            async with leases.hold(
                worker.job, wait=60.0, arm=[PostgresSink(worker.brief["ledger"])]
            ) as lease:
                worker.token = lease.token
                end = lease.lease_until.timestamp()
                worker.acquired(worker.token, end)
                worker.note("arm", "ok", lease.generation, owner=worker.token.owner, sink="postgres")
                fifo = opened(until)
                blocked = True
                child.tell("blocks", until=end)
                os.read(fifo, 1)
                worker.token = lease.token  # LeaseLost, where it is over
                return worker.write()

    while True:
        try:
            return asyncio.run(main())
        except LeaseLost:
            if blocked:
                raise
            worker.note("acquire", "info")  # granted too late to be of use, on a busy machine


PLIGHTS: Final[dict[str, Callable[..., Answer]]] = {
    "forks": forks,
    "keep_gil": keep_gil,
    "block_loop": block_loop,
}
