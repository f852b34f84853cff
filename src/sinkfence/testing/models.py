"""What a sink and a store must do, as small as it can be said: the random orders are judged by it."""

from __future__ import annotations

from sinkfence.errors import GenerationConflict, JobCompleted, LeaseHeld, LeaseLost, NotArmed, StaleToken
from sinkfence.testing.sink_harness import SinkCapabilities
from sinkfence.tokens import Token


class SinkModel:
    """What a sink must do, with one job."""

    def __init__(self, can: SinkCapabilities) -> None:
        self.can = can
        self.generation: int = 0
        self.owner: str = ""
        self.effects: list[str] = []
        self.steps: set[str] = set()

    def arm(self, token: Token) -> None:
        """Raise the mark."""
        if token.generation < self.generation:
            raise StaleToken(token)
        if token.generation == self.generation and token.owner != self.owner:
            raise GenerationConflict(token)
        self.generation, self.owner = token.generation, token.owner

    def write(self, token: Token, value: str, step: str | None) -> None:
        """Fence first, then the key."""
        if self.can.needs_arm and token.generation > self.generation:
            raise NotArmed(token)
        self.arm(token)
        if step is None or step not in self.steps:
            self.effects.append(value)
        self.steps |= {step} if step else set()


class StoreModel:
    """What a store must do, with one job; its clock is a flag: whether the lease runs."""

    def __init__(self, start: int) -> None:
        self.generation: int = start
        self.owner: str = ""
        self.runs: bool = False
        self.done: bool = False

    def acquire(self, owner: str) -> int:
        """Count."""
        if self.done:
            raise JobCompleted("")
        if self.runs:
            raise LeaseHeld("", self.owner, 0.0)
        return self.granted(self.generation + 1, owner)

    def granted(self, generation: int, owner: str) -> int:
        """Take note of a grant."""
        self.generation, self.owner, self.runs = generation, owner, True
        return generation

    def change(self, call: str, token: Token) -> None:
        """Renew, release or complete, if it is the token's."""
        mine = (token.generation, token.owner) == (self.generation, self.owner)
        freed = self.owner == "" and token.generation == self.generation
        if call == "release" and ((mine and self.done) or freed):
            return
        if not mine or (self.done and call == "renew"):
            raise LeaseLost(token, "")
        self.done, self.runs = call == "complete", call == "renew"
        self.owner = "" if call == "release" else self.owner
