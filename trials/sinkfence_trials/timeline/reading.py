"""From a history, and what the checker found in it, to a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from sinkfence_trials.checker import Violation
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.lasting import OF_THE_STORE, faults, holds
from sinkfence_trials.timeline.run import STORE, Kind, Lane, Moment, Run
from sinkfence_trials.timeline.text import shortened


def read(events: Iterable[Event], violations: Sequence[Violation]) -> Run:
    """Read a history, whose events need not be sorted; the violations are of those very events."""
    own = sorted(events, key=attrgetter("t"))
    requests = _Requests(own)
    run = Run(own[0].t, own[-1].t) if own else Run()
    run.holds = holds(own, requests.worker)
    run.faults = faults(own, run.end)
    broken: defaultdict[tuple[int, str], list[Violation]] = defaultdict(list)
    for violation in violations:
        broken[id(violation.event), violation.job].append(violation)
    run.moments = [_flaw(each, requests) for each in broken.values()]
    flawed = {id(violation.event) for violation in violations}
    run.moments += [
        moment for event in own if id(event) not in flawed for moment in _moments(event, requests)
    ]
    run.moments.sort(key=attrgetter("t"))
    jobs = {event.job for event in own if event.job} | {violation.job for violation in violations}
    there = dict.fromkeys(
        (moment.lane.name, moment.lane.sink) for moment in run.moments if moment.lane.of == "sink"
    )
    order = dict.fromkeys(sink for _, sink in there)
    run.jobs = {job: [sink for sink in order if (job, sink) in there] for job in sorted(jobs)}
    workers = requests.askers - {STORE, ""} | {
        flaw.worker for flaw in run.of("flaw") if flaw.began is not None
    }
    run.workers = sorted(workers, key=lambda name: (len(name), name))  # worker 10 after worker 2
    run.servers = sorted({fault.worker for fault in run.faults} - workers)
    return run


class _Requests:
    """Who asked for what, and when."""

    def __init__(self, events: list[Event]) -> None:
        self._writes: dict[str, Event] = {}
        self._asked: dict[int, Event] = {}
        self._owners: dict[str, str] = {}
        # Not of an observer of the store, which answers for everybody and asks for nothing.
        asking = (
            event.p
            for event in events
            if event.f == "arm" or (event.type == "invoke" and event.f in (*OF_THE_STORE, "write"))
        )
        self.askers = set(asking)
        last: dict[tuple[str, str], Event] = {}
        for event in events:
            if event.type == "invoke":
                last[event.p, event.f] = event
                if event.f == "write" and "id" in event.value:
                    self._writes[event.value["id"]] = event
            elif (asked := last.get((event.p, event.f))) is not None:
                self._asked[id(event)] = asked
            if (event.f, event.type) == ("acquire", "ok") and "owner" in event.value:
                owner = event.value["owner"]
                self._owners[owner] = event.p if event.p in self.askers else self._owners.get(owner, event.p)

    def of(self, event: Event) -> Event | None:
        """The request that led to an event."""
        return self._writes.get(event.value.get("id", "")) or self._asked.get(id(event))

    def worker(self, event: Event) -> str:
        """Whose an event is: an effect is told by the observer, and is its sender's."""
        if (asked := self.of(event)) is not None:
            return asked.p
        return self._owners.get(event.value.get("owner", ""), event.p)


def _moments(event: Event, requests: _Requests) -> Iterator[Moment]:
    step = f" of {shortened(event.key, 20, 1)}" if event.key else ""
    error = f": {event.value['error']}" if "error" in event.value else ""
    match event.f, event.type:
        case "write" | "complete", "invoke":
            yield _moment(event, requests, "request", f"begins: {event.f}{step}")
        case "arm", "ok":
            yield _moment(event, requests, "armed", f"has seen generation {event.generation}")
        case "effect", _:
            yield _moment(event, requests, "effect", f"write{step} took effect")
        case "read" | "write" | "arm" | "renew" | "complete" | "release", "fail":
            yield _moment(event, requests, "refusal", f"{event.f}{step} refused{error}")
        case "write" | "complete", "info":
            yield _moment(event, requests, "unknown", f"{event.f}{step}: no answer")
        case _:
            pass


def _flaw(broken: list[Violation], requests: _Requests) -> Moment:
    words = "; ".join(f"{violation.invariant}: {violation.sentence}" for violation in broken)
    rules = tuple(dict.fromkeys(violation.invariant for violation in broken))
    return _moment(broken[0].event, requests, "flaw", words, job=broken[0].job, rules=rules)


def _moment(
    event: Event, requests: _Requests, kind: Kind, words: str, *, job: str = "", rules: tuple[str, ...] = ()
) -> Moment:
    asked = requests.of(event)
    lane = Lane("worker", event.p) if kind in ("request", "unknown") else _lane(event, job or event.job)
    began, sent = (asked.t, event.value.get("sent")) if asked is not None else (None, None)
    return Moment(event.t, kind, lane, requests.worker(event), event.generation, words, began, sent, rules)


def _lane(event: Event, job: str) -> Lane:
    if event.f in OF_THE_STORE:
        return Lane("store", job)
    return Lane("sink", job, str(event.value.get("sink", "")))
