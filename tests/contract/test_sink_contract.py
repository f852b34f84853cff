"""Sound sinks keep every promise that they claim; each broken one breaks the promise that is named for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_sinks import (
    BROKEN,
    CLAIMS,
    Armed,
    Harness,
    MarkInTheHandle,
    NoOwnerCompared,
    Sink,
    UnarmedIsLetIn,
)

from sinkfence.testing import exercise_sink, sink_contract


def armed_claims(kind):
    """The claims of a toy."""
    return replace(CLAIMS, needs_arm=kind.needs_arm or kind is UnarmedIsLetIn)


@pytest.mark.parametrize("kind", [Sink, Armed])
def test_a_sound_toy_keeps_every_promise(kind):
    """A sink with one lock around check and effect breaks nothing, whether it needs arming or not."""
    report = exercise_sink(Harness(kind, armed_claims(kind)))
    report.check()
    not_run = {result.promise for result in report.not_run}
    assert not_run == ({"D8 duplicate-raises-mark"} if kind.needs_arm else set())


@pytest.mark.parametrize(
    ("kind", "promise"), BROKEN.items(), ids=lambda value: str(getattr(value, "__name__", value))
)
def test_a_broken_toy_breaks_its_promise(kind, promise):
    """What is wrong with a sink is found by the promise that is named for it."""
    report = exercise_sink(Harness(kind, armed_claims(kind)), only=[promise], patience=0.2)
    assert [result.promise for result in report.failed] == [promise], report
    assert not report.ok


def test_each_promise_has_a_toy_that_breaks_it():
    """No promise is left that nothing is known to break, but for those that need luck."""
    by_luck = {"D1 takeovers-race", "D9 arms-race", "D1 any-order"}
    assert {promise.id for promise in sink_contract} == {*BROKEN.values(), *by_luck}


@pytest.mark.parametrize("kind", [NoOwnerCompared, MarkInTheHandle, UnarmedIsLetIn])
def test_random_orders_find_what_is_wrong(kind):
    """Random orders of calls find it too, and tell it as the calls that lead there."""
    report = exercise_sink(Harness(kind, armed_claims(kind)), only=["D1 any-order"], examples=300)
    assert "state = Sink()" in report.failed[0].why
