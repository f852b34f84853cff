"""A worker of the story: a process that takes the job, makes four effects, and tells what became of each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from sinkfence import Lease, LeaseLost, Leases, Token
from sinkfence.sinks import Bearer
from sinkfence.stores.sql import SqlStore
from sinkfence_trials.demo import child
from sinkfence_trials.demo.effects import outcome_of
from sinkfence_trials.demo.fenced import Fenced
from sinkfence_trials.demo.places import BILLS, INVOICE, JOB, Bill, Places
from sinkfence_trials.demo.unfenced import Unfenced
from sinkfence_trials.history import now

TTL: Final = 20.0
"""Seconds of a lease: a machine may be so busy that a worker arms its destinations for seconds."""

REST: Final = 2.0
"""Seconds that worker A's lease has left once it has armed: the story waits until it has run out."""

PATIENCE: Final = 60.0
"""Seconds that a worker waits for the job."""


Destinations = Fenced | Unfenced
"""What a worker can do to the world, with the checks on or off."""

Pause = Callable[[str], None]
"""Called in the middle of an effect, with its name."""


def book(to: Destinations, bill: Bill, bearer: Bearer, pause: Pause) -> None:
    """Insert the bill's line in a transaction."""
    with to.transaction(bearer) as conn:
        conn.execute("INSERT INTO line VALUES (%s, %s, %s)", (INVOICE, bill.line, bill.amount))
        pause("transaction")  # the row is inserted, and nothing is committed


def publish(to: Destinations, bill: Bill, bearer: Bearer, pause: Pause) -> None:
    """Add the bill's line to the document: read it, and write it back with the line."""
    document = to.read()
    pause("upload")  # from here on it may be somebody else's
    to.upload(document + f"{bill}\n".encode(), bearer)


def charge(to: Destinations, bill: Bill, bearer: Bearer, _pause: Pause) -> None:
    """Have the customer charged; what delays this one is the network."""
    to.charge(bill.amount, bearer)


def without_pause(_effect: str) -> None:
    """Go on at once."""


MAKE: Final[dict[str, Callable[[Destinations, Bill, Bearer, Pause], None]]] = {
    "transaction": book,
    "upload": publish,
    "request": charge,
}
"""The effects, in the order in which an undisturbed worker makes them."""


def attempt(effect: str, to: Destinations, call: Callable[[], None]) -> None:
    """Make one effect, and tell what became of it."""
    began = now()
    child.tell("outcome", effect=effect, began=began, outcome=outcome_of(call, partial(to.answer, effect)))


def work(to: Destinations, bill: Bill, lease: Lease) -> None:
    """Make the effects one after the other, each with the lease: what a user writes."""
    for effect, make in MAKE.items():
        attempt(effect, to, partial(make, to, bill, lease, without_pause))


def work_and_be_stopped(to: Destinations, bill: Bill, token: Token) -> None:
    """Make the effects side by side, so that the story can stop this process in the middle of all three.

    Each is made with the bare token, which asks no clock: this worker never learns that it was stopped.
    `lease.token` would raise LeaseLost afterwards. That is a courtesy, and the fence has to hold without it.
    """
    continued = threading.Event()

    def pause(effect: str) -> None:
        child.tell("under way", effect=effect)
        continued.wait()

    with ThreadPoolExecutor() as pool:
        for effect, make in MAKE.items():
            pool.submit(attempt, effect, to, partial(make, to, bill, token, pause))
        signal.sigwait({signal.SIGCONT})  # here the story stops this process by SIGSTOP, and continues it
        continued.set()


def shorten(store: SqlStore, token: Token) -> None:
    """Let little be left of a lease: nothing of what follows needs it, for it is made with the bare token."""
    asked = now()
    until = store.renew(token, REST)
    child.tell("renewed", asked=asked, until=until.timestamp(), ttl=REST)


def main() -> None:
    """Take the job, do the work, complete it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})  # for sigwait; threads inherit the mask
    logging.disable()  # the story tells what the log would
    brief = child.enter()
    name, places = brief["name"], Places(**brief["places"])
    bill = BILLS[name]
    to = Fenced(places, name) if brief["fenced"] else Unfenced(places, name)
    store = SqlStore(places.leases)
    leases = Leases(store, ttl=TTL, owner=name)
    child.tell("asks")
    asked = now()
    try:
        with leases.hold(JOB, wait=PATIENCE, arm=to.sinks) as lease:
            token, until = lease.token, lease.lease_until.timestamp()
            child.tell(
                "acquired", asked=asked, generation=token.generation, owner=token.owner, until=until, ttl=TTL
            )
            if brief["stopped"]:
                shorten(store, token)
                work_and_be_stopped(to, bill, token)
            else:
                work(to, bill, lease)
            attempt("completion", to, lambda: to.complete(lease, {"total": bill.amount}))
    except LeaseLost as lost:  # raised by hold() at its end, to whoever hasn't noticed before
        child.tell("left", error=str(lost))
    else:
        child.tell("left", error=None)


if __name__ == "__main__":
    main()
