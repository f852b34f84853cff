"""Destinations, sound and unsound: what becomes of a request that arrives."""

from __future__ import annotations

from collections.abc import Iterator

from model.world import Handler, Mark, Move, World, Write, apply


def admit(world: World, generation: int, owner: str, process: int = 0) -> tuple[Mark | None, ...] | None:
    """The rule: the marks that hold once the token was admitted, None when it is refused."""
    mark = world.marks[process]
    if mark is not None and (generation, owner) != mark and generation <= mark.generation:
        return None
    return (*world.marks[:process], Mark(generation, owner), *world.marks[process + 1 :])


def refused(world: World, write: Write, process: int = 0) -> Move:
    """A refusal leaves no trace."""
    mark = world.marks[process]
    return f"{write.title} arrives and is refused: {mark.generation if mark else 'none'} has been seen", world


def applied(world: World, write: Write, how: str = "arrives and is applied") -> Move:
    """A request that had to pass nothing, or has passed."""
    return f"{write.title} {how}", apply(world, write)


# What arrives in one step


def unchecked(world: World, write: Write) -> Iterator[Move]:
    """No check."""
    yield applied(world, write)


def fenced(world: World, write: Write) -> Iterator[Move]:
    """Check, mark and effect in one atomic step."""
    marks = admit(world, write.generation, write.by)
    yield applied(world._replace(marks=marks), write) if marks else refused(world, write)


def fenced_strictly(world: World, write: Write) -> Iterator[Move]:
    """An owner may not come back with the number that it has shown before."""
    mark = world.marks[0]
    if mark is not None and write.generation <= mark.generation:
        yield refused(world, write)
    else:
        yield from fenced(world, write)


def fenced_by_number(world: World, write: Write) -> Iterator[Move]:
    """The numbers are compared, and not whose they are."""
    mark = world.marks[0]
    if mark is not None and write.generation < mark.generation:
        yield refused(world, write)
    else:
        yield applied(world._replace(marks=(Mark(write.generation, write.by),)), write)


def fenced_per_process(world: World, write: Write) -> Iterator[Move]:
    """The same step, but each process has a mark of its own."""
    for process in range(len(world.marks)):
        marks = admit(world, write.generation, write.by, process)
        if marks:
            how = f"is applied by process {process + 1}, which compares its own mark"
            yield applied(world._replace(marks=marks), write, how)
        else:
            yield refused(world, write, process)


def keyed(world: World, write: Write) -> Iterator[Move]:
    """The idempotency key alone: the first under a key has the effect, whoever it is."""
    if write.key in {effect.key for effect in world.effects}:
        yield f"{write.title} arrives: step {write.key!r} is done already", world
    else:
        yield applied(world, write)


def fenced_and_keyed(world: World, write: Write) -> Iterator[Move]:
    """First the fence, then the key, in one atomic step."""
    marks = admit(world, write.generation, write.by)
    if marks:
        yield from keyed(world._replace(marks=marks), write)
    else:
        yield refused(world, write)


def conditional(world: World, write: Write) -> Iterator[Move]:
    """S3's conditional PUT: it compares the ETag with If-Match, and no generation."""
    if write.condition != world.etag:
        yield f"{write.title} arrives, If-Match {write.condition}: 412, the ETag is {world.etag}", world
    else:
        mark = Mark(write.generation, write.by)
        sentence = f"{write.title} arrives, If-Match {write.condition}: applied"
        yield sentence, apply(world._replace(etag=write.makes, body=write.body, marks=(mark,)), write)


# What takes more than one step: the request is admitted, and has its effect later


def door(world: World, write: Write) -> Iterator[Move]:
    """The door compares, raises the mark, and lets the request in."""
    marks = admit(world, write.generation, write.by)
    if marks is None:
        yield refused(world, write)
    else:
        after = put_inside(world._replace(marks=marks), Handler(write, "admitted"))
        yield f"{write.title} is admitted at the door, and stalls", after


def apply_later(world: World) -> Iterator[Move]:
    """What was admitted is applied: nothing is compared any more."""
    for handler in world.inside:
        yield applied(leave(world, handler), handler.write, "is applied by its handler")


def check_and_apply(world: World) -> Iterator[Move]:
    """The handler's transaction compares again, in the step that applies."""
    for handler in world.inside:
        yield from fenced(leave(world, handler), handler.write)


def look_first(world: World, write: Write) -> Iterator[Move]:
    """A transaction begins: a look without a lock, to fail fast. Only arming raises a mark here."""
    if world.marks[0] != (write.generation, write.by):
        yield refused(world, write)
    else:
        after = put_inside(world, Handler(write, "begun"))
        yield f"{write.by}'s transaction ({write.generation}) begins, and has written nothing visible", after


def lock_then_read(world: World) -> Iterator[Move]:
    """COMMIT: the shared lock, then the mark, then the effect becomes visible and the lock goes."""
    for handler in world.inside:
        write, name = handler.write, f"{handler.write.by}'s COMMIT ({handler.write.generation})"
        if handler.stage == "begun":
            yield f"{name} takes the shared lock", onward(world, handler, "locked")
        elif handler.stage == "locked" and world.marks[0] != (write.generation, write.by):
            yield f"{name} reads the mark and is refused", leave(world, handler)
        elif handler.stage == "locked":
            yield f"{name} reads the mark: still its own", onward(world, handler, "checked, locked")
        else:
            yield applied(leave(world, handler), write, "becomes visible")


def read_then_lock(world: World) -> Iterator[Move]:
    """The trap: the snapshot in which the mark is read is older than the lock."""
    for handler in world.inside:
        write, name = handler.write, f"{handler.write.by}'s COMMIT ({handler.write.generation})"
        if handler.stage == "begun" and world.marks[0] != (write.generation, write.by):
            yield f"{name} reads the mark and is refused", leave(world, handler)
        elif handler.stage == "begun":
            yield f"{name} reads the mark: still its own", onward(world, handler, "checked")
        elif handler.stage == "checked":
            yield f"{name} takes the shared lock", onward(world, handler, "checked, locked")
        else:
            yield applied(leave(world, handler), write, "becomes visible")


def gate(world: World, write: Write) -> Iterator[Move]:
    """A gate: the mark first, then wait until no older request is inside."""
    marks = admit(world, write.generation, write.by)
    if marks is None:
        yield refused(world, write)
    else:
        after = put_inside(world._replace(marks=marks), Handler(write, "waiting"))
        yield f"{write.title} raises the mark and waits at the gate", after


def through_the_gate(world: World) -> Iterator[Move]:
    """One by one: in, once all older ones are out and the mark is still one's own; then the effect."""
    for handler in world.inside:
        write = handler.write
        held = [one.write.generation for one in world.inside if one.stage in ("running", "dead")]
        if handler.stage == "waiting" and world.marks[0] != (write.generation, write.by):
            yield refused(leave(world, handler), write)
        elif handler.stage == "waiting" and min(held, default=write.generation) >= write.generation:
            yield f"{write.title} goes in", onward(world, handler, "running")
        elif handler.stage in ("running", "loose"):
            yield applied(leave(world, handler), write, "is applied by its handler")


def gate_with_death(world: World) -> Iterator[Move]:
    """The same, and one handler dies inside without a word."""
    yield from through_the_gate(world)
    for handler in world.inside:
        if handler.stage == "running" and not world.deaths:
            after = onward(world._replace(deaths=1), handler, "dead")
            yield f"{handler.write.by}'s handler dies inside the gate", after


def gate_freed_by_death(world: World) -> Iterator[Move]:
    """A handler is killed, the kernel frees the gate, and its statement runs on in a database."""
    yield from through_the_gate(world)
    for handler in world.inside:
        if handler.stage == "running" and not world.deaths:
            sentence = f"{handler.write.by}'s handler is killed: the gate is free, its statement runs on"
            yield sentence, onward(world._replace(deaths=1), handler, "loose")


def forgets_once(world: World) -> Iterator[Move]:
    """The destination restarts without its marks: kept in memory, or restored from an older copy."""
    if not world.restarts and world.marks != (None,):
        yield "the destination restarts, and its mark is lost", world._replace(marks=(None,), restarts=1)


def rests(world: World) -> Iterator[Move]:
    """A destination that does nothing by itself."""
    yield from ()


# Who is inside


def put_inside(world: World, handler: Handler) -> World:
    """One more, in an order that means nothing."""
    return world._replace(inside=tuple(sorted((*world.inside, handler), key=repr)))


def leave(world: World, handler: Handler) -> World:
    """One less."""
    rest = list(world.inside)
    rest.remove(handler)
    return world._replace(inside=tuple(rest))


def onward(world: World, handler: Handler, stage: str) -> World:
    """The same request, a stage further."""
    return put_inside(leave(world, handler), handler._replace(stage=stage))
