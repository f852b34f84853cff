"""The variants: which store, which destination, what the workers do, and what must come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from model import arming, destinations, stores
from model.arming import Arm, Version, content, unique
from model.destinations import (
    conditional,
    door,
    fenced,
    fenced_and_keyed,
    fenced_by_number,
    fenced_per_process,
    fenced_strictly,
    gate,
    keyed,
    look_first,
)
from model.explore import Exploration, explore
from model.invariants import broken
from model.stores import Store
from model.world import Move, Receive, Worker, World, moves


@dataclass(frozen=True)
class Variant:
    """One way to build it. `breaks` is the verdict: every invariant that breaks, and none for what holds."""

    name: str
    program: tuple[str, ...]
    receive: Receive
    breaks: frozenset[str] = frozenset()
    work: Callable[[World], Iterator[Move]] = destinations.rests
    arm: Arm = arming.arm
    version: Version = unique
    store: Store = stores.SAFE
    workers: int = 3
    copies: int = 1
    """How often the wire may deliver one request: 2 stands for a repetition."""
    start: dict[str, Any] = field(default_factory=dict)

    def explore(self) -> Exploration[World]:
        """Try everything."""
        start = World(tuple(Worker(name) for name in "ABCD"[: self.workers]), **self.start)
        return explore(start, lambda world: moves(self, world), broken, self.reached)

    def reached(self, world: World) -> bool:
        """Whether the work is done: every keyed step has had its effect; where none has a key, the owner has.

        The owner is whom the record names, or the last who acquired: after a failover these may be two.
        """
        steps = {step.partition(" ")[2] for step in self.program if step.startswith("write ")}
        if steps:
            return steps <= {effect.key for effect in world.effects}
        return any(effect.by in (world.record.owner, world.workers[-1].name) for effect in world.effects)


def breaks(*names: str) -> frozenset[str]:
    """The verdict of a variant that does not hold."""
    return frozenset(names)


BLIND = ("write",)
ARMED = ("arm", "write")
STEPS = ("write pay", "write mail")
REGISTER = ("look", "arm", "put y")
NO_MARK = {"marks": ()}

VARIANTS = (
    # Where the check is
    Variant("no check", BLIND, destinations.unchecked, breaks("D1"), copies=2, start=NO_MARK),
    Variant("check atomic with the effect", BLIND, fenced, copies=2),
    Variant("check at the door, apply later", BLIND, door, breaks("D1"), work=destinations.apply_later),
    Variant(
        "check at the door, arm, apply later", ARMED, door, breaks("D1", "D9"), work=destinations.apply_later
    ),
    Variant("check in the applying transaction", BLIND, door, work=destinations.check_and_apply, copies=2),
    Variant(
        "check inside COMMIT: lock, then read",
        ARMED,
        look_first,
        work=destinations.lock_then_read,
        arm=arming.arm_behind_the_lock,
    ),
    Variant(
        "check inside COMMIT: read, then lock",
        ARMED,
        look_first,
        breaks("D1", "D9"),
        work=destinations.read_then_lock,
        arm=arming.arm_behind_the_lock,
    ),
    # Where the mark is
    Variant("mark per process", BLIND, fenced_per_process, breaks("D1", "D8"), start={"marks": (None, None)}),
    Variant("mark lost", BLIND, fenced, breaks("D1", "D8"), work=destinations.forgets_once),
    Variant("gate", BLIND, gate, work=destinations.through_the_gate),
    Variant("gate, a handler dies inside", BLIND, gate, breaks("L1"), work=destinations.gate_with_death),
    Variant(
        "gate, freed by the death of a handler whose statement runs on",
        BLIND,
        gate,
        breaks("D1"),
        work=destinations.gate_freed_by_death,
    ),
    Variant("equal generation refused", ARMED, fenced_strictly, breaks("L1")),
    # S3: compare the version, not the generation
    Variant(
        "S3 If-Match on a content ETag",
        ("look", "put y", "put x"),
        conditional,
        breaks("D1", "D8", "L1"),
        version=content,
        workers=2,
        start={"etag": "x"},
    ),
    Variant(
        "S3 If-Match on a content ETag, armed by equal bytes",
        REGISTER,
        conditional,
        breaks("D1", "D8", "D9", "L1"),
        version=content,
        arm=arming.arm_by_swap(content),
        start={"etag": "x"},
    ),
    Variant(
        "S3 If-Match on a unique body",
        REGISTER,
        conditional,
        version=unique,
        arm=arming.arm_by_swap(unique),
        copies=2,
    ),
    # Whether the store goes back
    Variant("lossy failover", ARMED, fenced, breaks("S5", "S7", "L1"), store=stores.LOSSY, workers=2),
    Variant(
        "lossy failover, repaired by what the destination saw",
        ARMED,
        fenced,
        breaks("S5", "S7"),
        store=stores.LOSSY,
        arm=arming.arm_and_repair,
        workers=2,
    ),
    Variant(
        "lossy failover, owner not compared",
        ("arm", "read", "write"),
        fenced_by_number,
        breaks("S5", "S7", "D3"),
        store=stores.LOSSY,
        arm=arming.arm_by_number,
        workers=2,
    ),
    Variant("repair by the record, and nothing was lost", ARMED, fenced, arm=arming.arm_and_repair),
    Variant(
        "repair without looking at the record", ARMED, fenced, breaks("S2"), arm=arming.arm_and_repair_blindly
    ),
    Variant("clock floor", ARMED, fenced, store=stores.FLOORED),
    Variant(
        "clock floor, the standby's clock is behind",
        ARMED,
        fenced,
        breaks("S5", "S7", "L1"),
        store=stores.FLOORED_LATE,
        workers=2,
    ),
    Variant(
        "clock floor, the number is ahead of the clock",
        ARMED,
        fenced,
        breaks("S5", "S7", "L1"),
        store=stores.FLOORED,
        workers=2,
        start={"clock": 4},
    ),
    # Fence and key
    Variant("key without fence", STEPS, keyed, breaks("D1"), workers=2, start=NO_MARK),
    Variant("fence without key", STEPS, fenced, breaks("D4"), workers=2),
    Variant("fence and key", STEPS, fenced_and_keyed, workers=2, copies=2),
    # What was read before
    Variant("read-modify-write without arm", ("read", "write"), fenced, breaks("D3")),
    Variant("read-modify-write, armed after the read", ("read", "arm", "write"), fenced, breaks("D3")),
    Variant("read-modify-write with arm", ("arm", "read", "write"), fenced),
    Variant(
        "read-modify-write with arm, checked inside COMMIT",
        ("arm", "read", "write"),
        look_first,
        work=destinations.lock_then_read,
        arm=arming.arm_behind_the_lock,
    ),
)
"""Every variant, by the page docs/explanation/model.md."""
