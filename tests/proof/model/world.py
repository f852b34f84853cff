"""One job, its lease store, its workers, the wire and one destination: the state, and what may happen next.

Time is not in it. A pause of any length is a move that comes late, and a lease may run out whenever it is
held: what holds here holds for every ttl, every pause and every clock. Each worker acquires once, so that
its name stands for the owner value that is fresh for each acquisition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from model.variants import Variant

FIRST = 7
"""The first generation that is issued: earlier owners made it so."""


class Write(NamedTuple):
    """A request under way to the destination."""

    by: str
    generation: int
    key: str
    """The idempotency key; empty where there is none."""
    base: int | None
    """How many effects its worker had seen when it read; None for a blind write."""
    body: str
    condition: str
    """The ETag in If-Match; empty where the request carries no condition."""
    makes: str
    """The ETag that the object has when this was applied."""
    copies: int
    """How often the wire may still deliver it."""

    @property
    def title(self) -> str:
        """How stories call it."""
        return f"{self.by}'s {'PUT' if self.condition else 'write'} ({self.generation})"


class Effect(NamedTuple):
    """What the destination has done, in the order in which it did it."""

    by: str
    generation: int
    key: str
    base: int | None
    armed: int
    """The highest generation whose arming had been acknowledged by then."""


class Mark(NamedTuple):
    """The highest generation that the destination has seen, and whose."""

    generation: int
    owner: str


class Handler(NamedTuple):
    """A request inside the destination: admitted, and without effect as yet."""

    write: Write
    stage: str


class Worker(NamedTuple):
    """Who works through the program, and knows of nothing but the answers that it got."""

    name: str
    generation: int = 0
    at: int = 0
    """The next step of the program."""
    base: int | None = None
    etag: str = ""
    stopped: bool = False
    """It was told that it is stale."""

    @property
    def title(self) -> str:
        """How stories call it."""
        return f"{self.name} ({self.generation})"


class World(NamedTuple):
    """Everything, at one instant. `robbed`, `issued`, `effects` and `armed` are for the invariants alone."""

    workers: tuple[Worker, ...]
    record: Mark = Mark(FIRST - 1, "")
    """The lease record: the counter, and who was given it."""
    standby: Mark = Mark(FIRST - 1, "")
    """The record, as far as it has reached the store's standby."""
    clock: int = FIRST
    holder: str = ""
    """Whose lease is live by the store's clock; empty when it has run out."""
    failovers: int = 0
    wire: tuple[Write, ...] = ()
    """Requests sent and not yet received, sorted: the wire keeps no order."""
    marks: tuple[Mark | None, ...] = (None,)
    """The mark of each process of the destination; one where they share it."""
    inside: tuple[Handler, ...] = ()
    etag: str = "v0"
    """The version of the destination's object, as its conditional writes see it."""
    body: str = "x"
    restarts: int = 0
    deaths: int = 0
    robbed: str = ""
    """Whose lease was given away while it was live."""
    issued: tuple[Mark, ...] = ()
    effects: tuple[Effect, ...] = ()
    armed: int = 0


Move = tuple[str, World]
"""What happens, as a sentence, and the world after it."""
Receive = Callable[[World, Write], Iterator[Move]]
"""What the destination may do with a request that arrives."""


def moves(variant: Variant, world: World) -> Iterator[Move]:
    """Everything that may happen next."""
    yield from variant.store.moves(world)
    for position, worker in enumerate(world.workers):
        if worker.generation == 0:
            # Workers are alike: the first to acquire is called A, the second B. Fewer worlds, same stories.
            if not world.holder:
                yield acquire(variant, world, position)
            break
        if not worker.stopped and worker.at < len(variant.program):
            yield from act(variant, world, position)
    for write in world.wire:
        yield from variant.receive(took(world, write), write)
    yield from variant.work(world)
    if world.holder:
        sentence = f"{world.holder}'s lease expires by the store's clock; nobody tells {world.holder}"
        yield sentence, expire(world)


def acquire(variant: Variant, world: World, position: int) -> Move:
    """The store counts, in one atomic step."""
    name = world.workers[position].name
    number = variant.store.count(world)
    return f"{name} acquires the job as generation {number}", grant(world, position, number)


def grant(world: World, position: int, number: int) -> World:
    """The record is the worker's, under this number."""
    name = world.workers[position].name
    return set_worker(world, position, generation=number)._replace(
        record=Mark(number, name),
        holder=name,
        issued=(*world.issued, Mark(number, name)),
        robbed=world.robbed or (world.holder if world.holder != name else ""),
    )


def expire(world: World) -> World:
    """No lease is shorter than a tick of the store's clock."""
    return world._replace(holder="", clock=world.clock + 1)


def act(variant: Variant, world: World, position: int) -> Iterator[Move]:
    """The next step of one worker's program."""
    worker = world.workers[position]
    verb, _, what = variant.program[worker.at].partition(" ")
    onward = set_worker(world, position, at=worker.at + 1)
    if verb == "arm":
        yield from variant.arm(world, position)
    elif verb == "read":
        seen = len(world.effects)
        yield f"{worker.title} reads: {seen} effects so far", set_worker(onward, position, base=seen)
    elif verb == "look":
        yield from look(world, position)
    elif verb == "write":
        write = Write(worker.name, worker.generation, what, worker.base, "", "", "", variant.copies)
        step = f" of step {what!r}" if what else ""
        yield f"{worker.title} sends its write{step} and hears nothing", send(onward, write)
    elif verb == "put":
        # An owner knows the version that it is about to make: the bytes that it sends decide it.
        etag = variant.version(f"{worker.name}{worker.at}", what)
        write = Write(worker.name, worker.generation, "", None, what, worker.etag, etag, variant.copies)
        after = send(set_worker(onward, position, etag=etag), write)
        yield f"{worker.title} sends PUT {what!r}, If-Match {worker.etag}, and hears nothing", after


def send(world: World, write: Write) -> World:
    """The wire has one more to deliver."""
    return world._replace(wire=tuple(sorted((*world.wire, write), key=repr)))


def look(world: World, position: int) -> Iterator[Move]:
    """Read the register: its version for If-Match, and its generation, which the client compares itself."""
    worker, mark = world.workers[position], world.marks[0]
    if mark is not None and mark.generation > worker.generation:
        sentence = f"{worker.title} reads the register at {mark.generation}: stale, it stops"
        yield sentence, stop(world, position)
    else:
        seen = mark.generation if mark else "none"
        sentence = (
            f"{worker.name} ({worker.generation}) reads the register: generation {seen}, ETag {world.etag}"
        )
        yield sentence, set_worker(world, position, at=worker.at + 1, etag=world.etag)


def took(world: World, write: Write) -> World:
    """The wire has delivered a request: once less."""
    rest = [one for one in world.wire if one is not write]
    if write.copies > 1:
        rest.append(write._replace(copies=write.copies - 1))
    return world._replace(wire=tuple(sorted(rest, key=repr)))


def apply(world: World, write: Write) -> World:
    """The effect itself."""
    effect = Effect(write.by, write.generation, write.key, write.base, world.armed)
    return world._replace(effects=(*world.effects, effect))


def set_worker(world: World, position: int, **changes: Any) -> World:
    """The world with one worker changed."""
    workers = list(world.workers)
    workers[position] = workers[position]._replace(**changes)
    return world._replace(workers=tuple(workers))


def stop(world: World, position: int) -> World:
    """A worker that was refused goes no further."""
    return set_worker(world, position, stopped=True)
