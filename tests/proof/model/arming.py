"""How an owner makes itself known to a destination before it works, and what it does when that is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model.destinations import admit
from model.world import Mark, Move, World, grant, set_worker, stop

Arm = Callable[[World, int], Iterator[Move]]
Version = Callable[[str, str], str]
"""The ETag of an object, from the id of the write that made it and from its bytes."""


def arm(world: World, position: int) -> Iterator[Move]:
    """Raise the mark, in one atomic step; the worker goes on when it has the answer."""
    worker = world.workers[position]
    marks = admit(world, worker.generation, worker.name)
    if marks is None:
        yield f"{worker.name} arms with {worker.generation}: stale, it stops", stop(world, position)
    else:
        after = set_worker(world, position, at=worker.at + 1)
        after = after._replace(marks=marks, armed=max(world.armed, worker.generation))
        yield f"{worker.name} arms: the mark is {worker.generation}", after


def arm_by_number(world: World, position: int) -> Iterator[Move]:
    """The numbers are compared, and not whose they are."""
    worker, mark = world.workers[position], world.marks[0]
    if mark is not None and mark.generation == worker.generation:
        world = world._replace(marks=(Mark(worker.generation, worker.name),))
    yield from arm(world, position)


def arm_behind_the_lock(world: World, position: int) -> Iterator[Move]:
    """The exclusive lock first: it waits for whoever holds the shared one."""
    if not any(handler.stage.endswith("locked") for handler in world.inside):
        yield from arm(world, position)


def arm_by_swap(version: Version) -> Arm:
    """S3: write the register anew, same payload, own generation, if it is still what was read."""

    def swap(world: World, position: int) -> Iterator[Move]:
        worker = world.workers[position]
        if worker.etag != world.etag:
            again = set_worker(world, position, at=worker.at - 1)
            yield f"{worker.name}'s arming ({worker.generation}) meets another ETag: it reads again", again
        else:
            etag = version(f"{worker.name}{worker.at}", world.body)
            after = set_worker(world, position, at=worker.at + 1, etag=etag)
            mark = Mark(worker.generation, worker.name)
            after = after._replace(etag=etag, marks=(mark,), armed=max(world.armed, worker.generation))
            yield f"{worker.name} arms: the register is at {worker.generation}, ETag {etag}", after

    return swap


def content(_: str, body: str) -> str:
    """An ETag that is the digest of the bytes: equal bytes, equal version."""
    return body


def unique(write_id: str, _: str) -> str:
    """An ETag that never was before, because every write's bytes hold an id of their own."""
    return write_id


def arm_and_repair(world: World, position: int) -> Iterator[Move]:
    """A refusal may mean that the store went back: repaired only while the record is still one's own."""
    worker = world.workers[position]
    if admit(world, worker.generation, worker.name) or world.record != (worker.generation, worker.name):
        yield from arm(world, position)
    else:
        yield jump_ahead(world, position)


def arm_and_repair_blindly(world: World, position: int) -> Iterator[Move]:
    """The same without looking at the record: whoever is refused takes the next number."""
    worker = world.workers[position]
    if admit(world, worker.generation, worker.name):
        yield from arm(world, position)
    else:
        yield jump_ahead(world, position)


def jump_ahead(world: World, position: int) -> Move:
    """A number above both the record and the mark."""
    worker, mark = world.workers[position], world.marks[0]
    assert mark is not None
    number = max(world.record.generation, mark.generation) + 1
    refusal = f"{worker.name} arms with {worker.generation} and is refused"
    sentence = f"{refusal}: its record is raised above {mark.generation}, to {number}"
    return sentence, grant(world, position, number)
