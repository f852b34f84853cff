"""The connection is cut at a message, and the same owner makes the same call again, until it is answered.

Every write is one step, of the successor, too: it has its effect once, whoever has it. In half of the cases
the repetition is held on its way until a successor has worked from beginning to end.
"""

from __future__ import annotations

from collections.abc import Iterator

from sinkfence_trials.torture.proxy import FaultProxy
from sweep.cases import Case, Place, Stage, messages

STEP = "the step"


def repetitions(place: Place) -> Iterator[Case]:
    """Every message in both directions, without a successor in between and with one."""
    for message in messages(place, STEP):
        yield play_repetition(place, Case(message, "repeat"))
        yield play_repetition(place, Case(message, "repeat late"))


def play_repetition(place: Place, case: Case) -> Case:
    """Cut the old owner's connection, and let it repeat its call."""
    late = case.then == "repeat late"
    stage = Stage(place, case, STEP, ttl=0.05 if late else 60)
    with FaultProxy(*place.upstream) as proxy:
        stop = proxy.stop(case.at.direction, case.at.message, case.at.connection)
        with stage.phase():
            owner = stage.begins(stage.old, proxy.address)
            assert owner.reaches(stop)
        # A client does one thing at a time: the repetition comes over the next connection.
        again = proxy.stop("request", 1, case.at.connection + 1)
        with stage.phase():
            stop.cut()
            case.repeated = owner.reaches(again)
        if late:
            with stage.phase():
                stage.succeeds()
        with stage.phase():
            again.release()
            case.errors += owner.done()
    return stage.judged()
