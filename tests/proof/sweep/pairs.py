"""Both are frozen: the old owner at k, its successor at j; then the old one goes on, and then the successor.

The combinations are all requests of the one with all requests of the other. A reply that is held adds
nothing to them: the server has then done what it has done when the next request is held, and whoever
receives the reply sends that request. And where the successor went on first, the old owner would stand
before the finished tenure that the takeover sweeps set before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.torture.proxy import FaultProxy
from sweep.cases import Case, Place, Stage, messages


def pairs(place: Place) -> Iterator[Case]:
    """Every request of the old owner, with every request of its successor."""
    requests = [message for message in messages(place) if message.direction == "request"]
    for at in requests:
        for beside in requests:
            yield play_pair(place, Case(at, beside=beside))


def play_pair(place: Place, case: Case) -> Case:
    """Freeze both, and let them go on in the order in which they came."""
    assert case.beside is not None
    stage = Stage(place, case)
    with FaultProxy(*place.upstream) as proxy, FaultProxy(*place.upstream) as other:
        first = proxy.stop(case.at.direction, case.at.message, case.at.connection)
        second = other.stop(case.beside.direction, case.beside.message, case.beside.connection)
        with stage.phase():
            old = stage.begins(stage.old, proxy.address)
            assert old.reaches(first)
        with stage.phase():
            new = stage.begins(stage.new, other.address)
            assert new.reaches(second)
        with stage.phase():
            first.release()
            case.errors += old.done()
        with stage.phase():
            second.release()
            case.stuck += new.done()
    return stage.judged()
