"""The scenes of a late owner: played at sinkfence itself; other packages are for `run.py bench peers`."""

from __future__ import annotations

from bench.__main__ import run
from bench.peers.scenes import Seen


def test_the_late_owner_is_refused_at_our_own_row(tmp_path):
    """A process that was stopped past its lease: neither its write nor its completion stands."""
    [_, table] = run("peers", rounds=None, seed=1, small=True, out=tmp_path)
    [row] = table.splitlines()[2:]
    assert row.startswith("| sinkfence ")
    assert "| has finished | refused | refused |" in row
    assert "effect: StaleToken; completion: LeaseLost" in row


def test_what_was_seen_is_told_as_it_was():
    """A write that stands, a completion that is counted twice, and a lock that the wrong one let go."""
    assert Seen("first", "second", [], True, "second").written
    assert not Seen("second", "first", [], True, "first").written
    told = {
        (record, finished): Seen("", record, [], finished, record).completed
        for record in ("first", "second", "nobody", "0", "1", "2", "held", "free")
        for finished in (True, False)
    }
    assert {case for case, completed in told.items() if completed} == {
        ("first", True),
        ("first", False),
        ("1", False),
        ("2", True),
        ("2", False),
        ("free", False),
    }
