"""A sound store keeps what it claims; each broken one breaks the promise that is named for it."""

from __future__ import annotations

import pytest
from toy_stores import (
    BROKEN,
    ByClock,
    CompleteDeletes,
    Harness,
    RenewsWithoutOwner,
    Steals,
)

from sinkfence.testing import exercise_store, store_contract


def test_a_sound_toy_keeps_every_promise():
    """Records behind one lock, shared by all handles, break nothing."""
    report = exercise_store(Harness())
    report.check()
    assert not report.not_run


@pytest.mark.parametrize(
    ("kind", "promise"), BROKEN.items(), ids=lambda value: str(getattr(value, "__name__", value))
)
def test_a_broken_toy_breaks_its_promise(kind, promise):
    """What is wrong with a store is found by the promise that is named for it."""
    report = exercise_store(Harness(kind), only=[promise])
    assert [result.promise for result in report.failed] == [promise], report
    assert not report.ok


def test_each_promise_has_a_toy_that_breaks_it():
    """No promise is left that nothing is known to break."""
    assert {promise.id for promise in store_contract} == {*BROKEN.values(), "S1 any-order"}


def test_a_sound_toy_that_counts_by_a_clock_keeps_every_promise():
    """Its numbers can't be foretold, and go on above all that were issued, whatever backup is put back."""
    report = exercise_store(Harness(ByClock))
    report.check()
    assert not report.not_run


def test_any_number_may_be_the_first():
    """From whatever generation on, nothing else is different."""
    report = exercise_store(Harness(), start=3_000_000_000)
    report.check()
    assert not report.not_run


@pytest.mark.parametrize("kind", [Steals, RenewsWithoutOwner, CompleteDeletes])
def test_random_orders_find_what_is_wrong(kind):
    """Random orders of calls find it too, and tell it as the calls that lead there."""
    report = exercise_store(Harness(kind), only=["S1 any-order"], examples=300)  # some need luck
    assert "state = Store()" in report.failed[0].why
