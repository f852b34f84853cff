"""The other ways to write to PostgreSQL: an owner that is frozen at any of its messages changes nothing."""

from __future__ import annotations

import places
import pytest
from sweep.takeover import sweep
from sweep.verdicts import assert_repetitions, assert_takeovers, sound


@pytest.fixture
def place(request, database):
    """A place of this kind, with what it needs in the database."""
    made = request.param(database)
    if request.param in (places.Protected, places.Row):
        made.install()
    return made


@pytest.mark.parametrize(
    "place",
    [places.Once, places.Bound, places.Protected, places.Row],
    indirect=True,
    ids=lambda kind: kind.__name__,
)
def test_takeovers(place, say):
    """The table is the successor's, wherever the old owner was frozen, which is refused."""
    assert_takeovers(f"PostgreSQL, {type(place).__name__}", place, say, ("release",))


@pytest.mark.parametrize("place", [places.Once], indirect=True, ids=lambda kind: kind.__name__)
def test_repetitions(place, say):
    """A step whose answer was lost is done once, though nothing but the ledger knows of it."""

    def told(end):
        if end >= 18:  # arming repeats itself
            return ""
        return "OutcomeUnknown" if end < 2 else "OperationalError"

    assert_repetitions("PostgreSQL, Once", place, say, told)


def test_takeovers_by_eviction(database, say):
    """With lock=True a frozen owner is in the way: its session is ended, and it has written nothing."""
    cases = sound("PostgreSQL, Locked, takeovers", sweep(places.Locked(database), ("release",)), say)
    assert {case.winner for case in cases} == {"B:2"}
    assert [case for case in cases if not case.refusal] == cases[-1:]
    refusals = [case.refusal for case in cases]
    assert set(refusals) == {"StaleToken", "OperationalError", "OutcomeUnknown", ""}
