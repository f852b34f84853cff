"""Tries a whole contract on a store or a sink, and reports."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Final

from sinkfence.testing.counting import counting
from sinkfence.testing.effects import effects
from sinkfence.testing.fencing import fencing
from sinkfence.testing.holding import holding
from sinkfence.testing.promises import NotRun, Promise, promise, report
from sinkfence.testing.report import Report
from sinkfence.testing.sink_harness import SinkBench, SinkHarness, sink_bench
from sinkfence.testing.store_harness import StoreBench, StoreHarness, store_bench


@promise("D1 any-order")
def sink_any_order(bench: SinkBench) -> None:
    """Whatever owners do in whatever order, answers and effects are those of a small model."""
    machines().try_sink(bench)


@promise("S1 any-order")
def store_any_order(bench: StoreBench) -> None:
    """Whatever workers do in whatever order, answers and records are those of a small model."""
    machines().try_store(bench)


def machines() -> Any:
    """Return the state machines, the only part that needs more than the standard library."""
    try:
        from sinkfence.testing import machines
    except ImportError:
        raise NotRun("hypothesis is not installed: pip install hypothesis") from None
    return machines


sink_contract: Final[tuple[Promise[SinkBench], ...]] = (*fencing, *effects, sink_any_order)
store_contract: Final[tuple[Promise[StoreBench], ...]] = (*counting, *holding, store_any_order)


def exercise_sink(
    harness: SinkHarness[Any],
    *,
    subject: str | None = None,
    only: Collection[str] = (),
    examples: int = 100,
    patience: float = 30.0,
) -> Report:
    """Try what a sink promises, each promise on jobs of its own: one destination serves for many runs.

    Args:
        harness: how to use the destination.
        subject: what the report calls it; the harness's class otherwise.
        only: ids of the promises to try (`str(promise)` for each of `sink_contract`); all by default.
        examples: how many random orders of up to 15 calls are tried.
        patience: seconds after which a newer owner counts as kept waiting.

    Raises:
        ValueError: there is no such promise.
    """
    start = partial(sink_bench, harness, patience, examples)
    return report(subject or type(harness).__name__, harness.capabilities, sink_contract, start, only)


def exercise_store(
    harness: StoreHarness,
    *,
    subject: str | None = None,
    only: Collection[str] = (),
    examples: int = 100,
    start: int = 0,
) -> Report:
    """Try what a lease store promises; the other arguments are those of `exercise_sink`.

    `start` is the generation of each job before it is acquired, so that numbers of any length can be tried.

    Raises:
        ValueError: there is no such promise.
    """
    begin = partial(store_bench, harness, examples, start)
    return report(subject or type(harness).__name__, harness.capabilities, store_contract, begin, only)
