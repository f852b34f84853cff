"""The old owner is frozen, its successor works from beginning to end, and the old one goes on."""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.torture.proxy import FaultProxy
from sweep.cases import Case, Place, Stage, Then, messages


def sweep(place: Place, then: tuple[Then, ...] = ("release", "cut")) -> Iterator[Case]:
    """Every message in both directions, and each way on: it is delivered, or lost with its connection."""
    for message in messages(place):
        for way in then:
            yield play(place, Case(message, way))


def play(place: Place, case: Case) -> Case:
    """Freeze the old owner, let the successor work, let the old one go on."""
    stage = Stage(place, case)
    with FaultProxy(*place.upstream) as proxy:
        stop = proxy.stop(case.at.direction, case.at.message, case.at.connection)
        with stage.phase():
            owner = stage.begins(stage.old, proxy.address)
            assert owner.reaches(stop)
        with stage.phase():
            stage.succeeds()
        with stage.phase():
            if case.then == "cut":
                stop.cut()
                case.errors += owner.done()
                # It knows nothing, and tries again from the beginning.
                owner = stage.begins_anew(proxy.address)
            else:
                stop.release()
            case.errors += owner.done()
    return stage.judged()
