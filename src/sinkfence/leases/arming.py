"""Arming before the body starts, and what to do when a sink is ahead of the store.

A sink that has seen a higher generation than the newest one either knows a later owner, and then it is we
who are stale; or the store has gone back (a lossy failover, a restored backup) and issues numbers again.
Only the store can tell, by one compare-and-swap on owner *and* generation: "I have only just acquired it"
proves nothing, as we may have been stopped since. A acquires 7 and is stopped; B acquires 8 and arms; A goes
on, arms, and is refused. An unconditional repair would take the job from B.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, cast

from sinkfence import observe
from sinkfence.errors import NotEnforced, StaleToken
from sinkfence.flows import Flow
from sinkfence.grants import AsyncStore, Grant, Store
from sinkfence.leases.means import Means
from sinkfence.leases.tenure import Tenure
from sinkfence.observe import log
from sinkfence.sinks import AsyncSink, Sink
from sinkfence.tokens import Token

LARGEST_JUMP: Final = 1_000_000
"""How far a record is raised without an operator: a mark further ahead is more likely somebody's mistake."""


def check_sinks(store: Store | AsyncStore, arm: Collection[Sink | AsyncSink], *, loop: bool = False) -> None:
    """Refuse sinks that cannot be armed from here: in an event loop, or without one.

    Raises:
        NotEnforced: the sink remembers and the store doesn't: after a restart it would issue numbers from 1
            again, all of them below the sink's mark.
        TypeError: it is no sink, or one for an event loop; or one alone, in place of a list of them.
    """
    if not isinstance(arm, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"arm= takes a list of sinks, not one {type(arm).__name__}: arm=[...]")
    for sink in arm:
        if not callable(getattr(sink, "arm", None)) or not hasattr(sink, "durable"):
            raise TypeError(
                f"{type(sink).__name__} is no sink, which has arm() and durable, and can't be armed "
                "(of a bucket, it is the objects)"
            )
        if is_async(sink) and not loop:
            raise TypeError(
                f"{type(sink).__name__} is for an event loop, where sinkfence.aio arms it: "
                "this hold() arms synchronous sinks"
            )
        if sink.durable and not store.durable:
            raise NotEnforced(
                f"{type(store).__name__} forgets its count, {type(sink).__name__} does not forget its marks: "
                "use a store that keeps its records (SqlStore)"
            )


def is_async(sink: Sink | AsyncSink) -> bool:
    """Whether arming this sink is to be awaited."""
    return inspect.iscoroutinefunction(sink.arm)


def is_future(answer: object) -> bool:
    """Whether an answer comes later, on another thread (`asyncio.run_coroutine_threadsafe`)."""
    return isinstance(answer, Future)


def arm_here(sink: Sink, token: Token) -> None:
    """Arm a sink on this thread.

    Raises:
        TypeError: it answers with what is to be awaited, as one that passes on to another: not armed yet.
    """
    answer: Any = cast("Any", sink).arm(token)
    if inspect.isawaitable(answer) or is_future(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(
            f"{type(sink).__name__} is for an event loop, where sinkfence.aio arms it: nothing was armed"
        )


def repairing(
    means: Means[Any], tenure: Tenure, stale: StaleToken, owner: str, seconds: float
) -> Flow[Grant | None]:
    """Answer a sink's refusal: a grant above its mark where the store has gone back, None where we are stale.

    Where the mark is not known, or too far ahead to be believed, it is None as well, and the latter is
    said on the error.

    Raises:
        GenerationExhausted, OutcomeUnknown, and the store's own errors.
    """
    token = tenure.token
    if stale.mark is None:
        return None
    if stale.mark - token.generation > LARGEST_JUMP and not means.store.jumps:
        stale.add_note(
            f"The mark is more than {LARGEST_JUMP} ahead. If the lease store has gone back, "
            f"raise it by hand: leases.raise_above({token.job_id!r}, {stale.mark})"
        )
        return None
    grant: Grant | None = yield partial(
        means.asking.reacquire_above, token, stale.mark, owner, tenure.ttl, seconds
    )
    if grant is not None:
        observe.fault("went-back")
        log.error(
            "job %r: a sink has seen generation %d, the lease store had issued only %d: it went back, and "
            "was raised to %d",
            token.job_id,
            stale.mark,
            token.generation,
            grant.token.generation,
            extra={"job_id": token.job_id, "generation": grant.token.generation, "mark": stale.mark},
        )
    return grant
