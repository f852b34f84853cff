"""A job has one owner at a time and is completed once, wherever its owners are frozen or cut off."""

from __future__ import annotations

import places
from sweep import Case, messages, pairs, play_pair, repetitions, sweep
from sweep.verdicts import broken, heard, late_pairs, late_repetitions, late_takeovers, sound


class TestLeaseStore:
    """Acquire, renew and complete: what comes before is reading, which version of the tables is there."""

    def test_takeovers(self, database, say):
        """The job is completed once: by the old owner if only the answer to its completion was held."""
        cases = sound("lease store, takeovers", sweep(places.Store(database)), say)
        end = cases[-1].at
        for case in cases:
            assert case.winner == ("A:1" if case.at == end else "B:2"), case.title
        released = [heard(case) for case in cases if case.then == "release"]
        assert released == ["JobCompleted"] * (len(released) - 5) + ["LeaseLost"] * 4 + [""]

    def test_pairs(self, database, say):
        """Whoever of the two is let in first completes the job."""
        cases = sound("lease store, pairs", pairs(places.Store(database)), say)
        requests = list(dict.fromkeys(case.beside for case in cases))
        for case in cases:
            held = case.beside in requests[-2:]
            assert case.winner == ("B:2" if held else "A:1"), case.title
            refusal = "LeaseLost" if case.at in requests[-2:] else "LeaseHeld"
            assert heard(case) == (refusal if held else ""), case.title

    def test_repetitions(self, database, say):
        """The store repeats by itself what got no answer, and takes it for what it did before."""
        cases = sound("lease store, repetitions", repetitions(places.Store(database)), say)
        alone = [case for case in cases if case.then == "repeat"]
        late = [case for case in cases if case.then == "repeat late"]
        assert {(case.winner, heard(case)) for case in alone} == {("A:1", "")}
        assert [case.winner for case in late] == ["B:2"] * (len(late) - 1) + ["A:1"]
        assert [heard(case) for case in late] == ["JobCompleted"] * (len(late) - 4) + ["LeaseLost"] * 3 + [""]

    def test_a_completion_by_anybody_is_caught(self, database):
        """The sweeps find the completion of an owner that has lost the job."""
        place = places.CompletedByAnybody(database)
        assert broken(late_takeovers(place)) == {"S6"}
        assert broken(late_pairs(place)) == {"S6"}

    def test_a_completion_that_does_not_know_itself_is_caught(self, database):
        """The sweep finds the owner that is refused for what it has done itself."""
        assert broken(late_repetitions(places.NotDoneTwice(database))) == {"D6"}


class TestKeptLease:
    """Acquire, the heartbeat's batch, renew and release, while the successor keeps the job."""

    def test_takeovers(self, database, say):
        """No message of the old owner, however late, moves the record that its successor was told of."""
        place = places.Kept(database)
        cases = sound("a kept lease, takeovers", sweep(place), say)
        assert place.disturbed() == []
        released = [heard(case) for case in cases if case.then == "release"]
        late = released.count("LeaseLost")
        # Before the store has let it in; from then on, in both directions; and when only the answer is late.
        assert released == ["LeaseHeld"] * (len(released) - late - 1) + ["LeaseLost"] * late + [""]
        assert late >= 6
        assert {heard(case) for case in cases if case.then == "cut"} == {"LeaseHeld"}

    def test_pairs(self, database, say):
        """Nor where the successor was frozen, too."""
        place = places.Kept(database)
        requests = [at for at in messages(place) if at.direction == "request"]
        # All but the release, which the successor does not send.
        both = [Case(at, beside=beside) for at in requests for beside in requests[:-1]]
        sound("a kept lease, pairs", (play_pair(place, case) for case in both), say)
        assert place.disturbed() == []

    def test_a_release_by_anybody_is_caught(self, database):
        """The sweep finds the release that takes the job from its successor."""
        place = places.ReleasedByAnybody(database)
        list(late_takeovers(place))
        assert place.disturbed() != []
