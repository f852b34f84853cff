"""What must have come of a sweep's cases: exactly who was refused, and by what; or what was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from sweep.cases import Case, Place, Then, messages
from sweep.pairs import pairs, play_pair
from sweep.repetition import STEP, play_repetition, repetitions
from sweep.takeover import play, sweep

Say = Callable[[str], None]


def heard(case: Case) -> str:
    """What the old owner was told."""
    return " ".join([*case.told, case.refusal]).strip()


def broken(cases: Iterable[Case]) -> set[str]:
    """What the checker found, by name."""
    return {violation.invariant for case in cases for violation in case.violations}


def sound(name: str, cases: Iterable[Case], say: Say) -> list[Case]:
    """The cases, in none of which anything was broken, or the successor kept from working."""
    cases = list(cases)
    for case in cases:
        assert not case.violations, f"{case.title}: {case.violations}"
        assert not case.stuck, f"{case.title}: {case.stuck}"
        assert case.repeated, case.title
    counts = Counter(heard(case) or "nothing" for case in cases)
    told = ", ".join(f"{word} {count}" for word, count in sorted(counts.items()))
    last = Counter(case.winner for case in cases)
    say(f"sweep, {name}: {len(cases)} cases; the old owner heard: {told}; last: {dict(sorted(last.items()))}")
    return cases


def assert_takeovers(name: str, place: Place, say: Say, then: tuple[Then, ...] = ("release", "cut")) -> None:
    """The last effect is the successor's. The old owner is refused unless it had come to its end."""
    cases = sound(f"{name}, takeovers", sweep(place, then), say)
    assert {case.winner for case in cases} == {"B:2"}
    end = cases[-1].at
    assert end.direction == "reply"
    assert [(case.at, case.then) for case in cases if not case.refusal] == [(end, "release")]
    assert {case.refusal for case in cases} == {"StaleToken", ""}


def assert_pairs(name: str, place: Place, say: Say, *, before_armed: int = 1) -> None:
    """The old owner is refused just where its successor was frozen after it had armed."""
    cases = sound(f"{name}, pairs", pairs(place), say)
    requests = list(dict.fromkeys(case.beside for case in cases))
    assert len(cases) == len(requests) ** 2
    for case in cases:
        assert case.winner == "B:2", case.title
        armed = case.beside not in requests[:before_armed]
        assert heard(case) == ("StaleToken" if armed else ""), case.title


def assert_repetitions(
    name: str, place: Place, say: Say, before: Callable[[int], str] = lambda _: "", late: str = "StaleToken"
) -> None:
    """Each step has one effect.

    What the owner is told before it repeats its call, `before` says by the number of messages that were to
    come; how it ends when its successor found the step done by it, `late`.
    """
    cases = sound(f"{name}, repetitions", repetitions(place), say)
    places = list(dict.fromkeys(case.at for case in cases))
    assert len(cases) == 2 * len(places)
    for case in cases:
        end = len(places) - 1 - places.index(case.at)
        alone = case.then == "repeat"
        assert case.winner == ("A:1" if alone or end == 0 else "B:2"), case.title
        refusal = "" if alone else late if end == 0 else "StaleToken"
        assert heard(case) == f"{before(end)} {refusal}".strip(), case.title


def late_takeovers(place: Place) -> Iterator[Case]:
    """The takeovers at the last two requests and their answers."""
    for at in messages(place)[-4:]:
        yield play(place, Case(at))


def late_repetitions(place: Place) -> Iterator[Case]:
    """The repetitions at the request that has the effect, and at its answer."""
    for at in messages(place, STEP)[-2:]:
        for then in ("repeat", "repeat late"):
            yield play_repetition(place, Case(at, then))


def late_pairs(place: Place) -> Iterator[Case]:
    """The pairs with an old owner at its last request."""
    requests = [at for at in messages(place) if at.direction == "request"]
    for beside in requests:
        yield play_pair(place, Case(requests[-1], beside=beside))
