"""What an author says of a sink, so that it can be exercised, and the bench that it is exercised on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sinkfence.errors import StaleToken
from sinkfence.sinks import Bearer
from sinkfence.testing.promises import NotRun, claim, must
from sinkfence.tokens import Token

S = TypeVar("S")

GRACE = 1.0
"""Seconds for which a write stands still where it is said to keep the newer owner waiting. What order of
effects is right then is judged by whether it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCapabilities:
    """What a sink claims. What is not claimed is not tried, and the report says what that means."""

    atomic: bool = claim("door only, not a fence: what was let in may land after a newer owner's write")
    """Check and effect are one atomic step of the destination."""
    durable: bool = claim("its marks end with its process, and the fence with them")
    """A new handle knows the marks that another one left, after that one is gone."""
    nonblocking: bool = claim("an owner that is frozen inside a write keeps its successor from arming")
    """Arming does not wait for a write that stands still."""
    concurrent: bool = claim("nothing is known of writes at the same time")
    """Several handles may be used at once, each by a thread of its own."""
    keys: bool = claim("no idempotency keys: what is repeated takes effect twice")
    """A step takes effect once, whoever repeats it."""
    needs_arm: bool = claim("a write of a newer owner is accepted unarmed, and raises the mark")
    """An unarmed write is refused with NotArmed. Either way is sound; which one is tried, too."""
    history: bool = claim("only the last effect can be read back, and all is judged by it")
    """`truth` tells all effects, and not the last one alone: a claim of the harness."""


class SinkHarness(Protocol[S]):
    """How to use one destination, in about 30 lines."""

    @property
    def capabilities(self) -> SinkCapabilities:
        """What is claimed."""
        ...

    def open(self, job_id: str) -> AbstractContextManager[S]:
        """Give a *new* handle for a job, as another process would have it: shares no memory."""
        ...

    def arm(self, sink: S, bearer: Bearer) -> None:
        """Arm, and let every error pass."""
        ...

    def write(
        self, sink: S, bearer: Bearer, value: str, step: str | None, between: Callable[[], None]
    ) -> None:
        """Write the value, as the effect of this step where there is one; let every error pass.

        `between()` stands for a pause of the writer: call it once, as late in the write as a pause can
        come and the effect still be to happen: after the client's own checks, before what commits it.
        """
        ...

    def truth(self, job_id: str) -> Sequence[str]:
        """Return the values that took effect for the job, in that order, read *not through the sink*."""
        ...


class SinkBench:
    """One handle of a sink and one job that nothing has happened to yet."""

    def __init__(
        self, harness: SinkHarness[Any], sink: Any, job_id: str, patience: float, examples: int
    ) -> None:
        self.harness = harness
        self.can: SinkCapabilities = harness.capabilities
        self.job_id = job_id
        self._sink = sink
        self.examples = examples
        self._patience = patience

    def token(self, generation: int, owner: str = "a") -> Token:
        """Return a token of this job."""
        return Token(self.job_id, generation, f"{owner}:{generation}")

    def armed(self, generation: int, owner: str = "a") -> Token:
        """Return a token of this job that was armed."""
        token = self.token(generation, owner)
        self.arm(token)
        return token

    def arm(self, bearer: Bearer) -> None:
        """Arm."""
        self.harness.arm(self._sink, bearer)

    def write(
        self, bearer: Bearer, value: str, step: str | None = None, between: Callable[[], None] = lambda: None
    ) -> None:
        """Write."""
        self.harness.write(self._sink, bearer, value, step, between)

    def truth(self) -> list[str]:
        """What took effect, as far as it can be read."""
        return list(self.harness.truth(self.job_id))

    def truth_is(self, *values: str) -> None:
        """Raise Broken unless just this took effect; without `history` the last of it is compared."""
        found, wanted = self.truth(), list(values)
        if not self.can.history:
            found, wanted = found[-1:], wanted[-1:]
        must(found == wanted, f"in effect are {found}, and should be {wanted}")

    @contextmanager
    def elsewhere(self, job_id: str | None = None) -> Generator[SinkBench]:
        """Give the same job, or another one, by a new handle."""
        job_id = job_id or self.job_id
        with self.harness.open(job_id) as sink:
            yield SinkBench(self.harness, sink, job_id, self._patience, self.examples)

    def interrupted(self, bearer: Bearer, value: str, successor: Callable[[], None]) -> bool:
        """Write, and let a successor work while that write stands still; return whether it was refused.

        Where arming is not claimed to be nonblocking, the write goes on although the successor is waiting.
        """
        working: list[Future[None]] = []
        in_time: list[bool] = []
        refused = False
        with ThreadPoolExecutor(1) as pool:

            def between() -> None:
                if working:  # a write that is sent again pauses once
                    return
                working.append(pool.submit(successor))
                with suppress(Exception):  # it is raised below, where it doesn't go through the sink
                    working[0].result(self._patience if self.can.nonblocking else min(self._patience, GRACE))
                in_time.append(working[0].done())

            try:
                self.write(bearer, value, between=between)
            except StaleToken:
                refused = True
            if not working:
                raise NotRun("the harness never called between()")
            working[0].result()
        waited = f"the newer owner waited {self._patience:g} s for a write that stood still"
        must(in_time[0] or not self.can.nonblocking, waited)
        must(refused or not in_time[0], "a delayed write was acknowledged after the newer owner had armed")
        return refused


@contextmanager
def sink_bench(harness: SinkHarness[Any], patience: float, examples: int) -> Generator[SinkBench]:
    """Give a bench with a job of its own, so that one destination serves for many runs."""
    job_id = f"contract/{secrets.token_hex(8)}"
    with harness.open(job_id) as sink:
        yield SinkBench(harness, sink, job_id, patience, examples)
