"""Every variant of the model comes out as its verdict says, the broken ones too."""

from __future__ import annotations

import pytest
from model.explore import explore
from model.stories import bounds, report, story, verdict
from model.variants import VARIANTS, Variant

BY_NAME = {variant.name: variant for variant in VARIANTS}

MUST_BREAK = {
    "no check": "D1",
    "check at the door, apply later": "D1",
    "mark per process": "D1",
    "gate, a handler dies inside": "L1",
    "S3 If-Match on a content ETag": "D1",
    "lossy failover": "S7",
    "mark lost": "D1",
    "key without fence": "D1",
    "fence without key": "D4",
    "read-modify-write without arm": "D3",
}
MUST_HOLD = {
    "check atomic with the effect",
    "check in the applying transaction",
    "gate",
    "S3 If-Match on a unique body",
    "clock floor",
    "fence and key",
    "read-modify-write with arm",
}


@pytest.fixture(scope="module")
def explored():
    """Each variant is explored once."""
    return {variant.name: variant.explore() for variant in VARIANTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_verdict(name, explored, say):
    """A variant breaks exactly the invariants that its verdict names, within bounds that are said."""
    variant, found = BY_NAME[name], explored[name]
    say(f"{name}: {verdict(variant)} ({bounds(variant, found)})")
    assert set(found.broken) == variant.breaks, "\n".join(report(variant, found))


def test_the_verdicts_that_the_design_rests_on():
    """The sound variants hold, and each unsound one is broken where it was said to be."""
    assert {name: BY_NAME[name].breaks & {invariant} for name, invariant in MUST_BREAK.items()} == {
        name: {invariant} for name, invariant in MUST_BREAK.items()
    }
    assert all(not BY_NAME[name].breaks for name in MUST_HOLD)


@pytest.mark.parametrize("name", sorted(MUST_HOLD))
def test_what_holds_was_put_to_the_test(name, explored):
    """In every sound variant a lease expires, a successor takes over, and a late write is refused."""
    happened = " ".join(explored[name].happened)
    assert "B acquires the job" in happened
    assert "A's lease expires" in happened
    assert "is refused" in happened or "412" in happened


def test_a_fault_is_told_as_a_story(explored):
    """The shortest way to a fault reads as sentences, in the order in which things happen."""
    told = story(BY_NAME["no check"], explored["no check"], "D1")
    assert told.splitlines() == [
        "no check: D1 broken",
        "   1. A acquires the job as generation 7",
        "   2. A (7) sends its write and hears nothing",
        "   3. A's lease expires by the store's clock; nobody tells A",
        "   4. B acquires the job as generation 8",
        "   5. B (8) sends its write and hears nothing",
        "   6. B's write (8) arrives and is applied",
        "   7. A's write (7) arrives and is applied",
        "  => not: Applied generations never go back",
    ]


def test_a_bound_that_is_hit_is_no_proof():
    """An exploration that would pass its limit fails, instead of reporting what it saw as all there is."""
    with pytest.raises(MemoryError, match="more than 10 states"):
        explore(0, lambda n: [("on", n + 1)], lambda _: (), lambda _: True, limit=10)


def test_the_shortest_way_is_found():
    """Of two ways to the same fault the shorter one is told."""
    steps = {0: [("long", 1), ("short", 3)], 1: [("way", 2)], 2: [("round", 3)], 3: []}
    found = explore(0, steps.__getitem__, lambda n: ["X"] if n == 3 else [], lambda n: n == 3)
    assert found.broken == {"X": ("short",)}


def test_who_can_no_longer_get_there_starves():
    """A state from which no way leads to the goal breaks L1, and one that only may miss it does not."""
    steps = {0: [("good", 1), ("bad", 2)], 1: [], 2: [("on and on", 2)]}
    found = explore(0, steps.__getitem__, lambda _: (), lambda n: n == 1)
    assert found.broken == {"L1": ("bad",)}
    del steps[0][1]
    assert not explore(0, steps.__getitem__, lambda _: (), lambda n: n == 1).broken


def test_a_verdict_needs_a_variant_of_its_own():
    """No two variants share a name."""
    assert len(BY_NAME) == len(VARIANTS)
    assert all(isinstance(variant, Variant) for variant in VARIANTS)
