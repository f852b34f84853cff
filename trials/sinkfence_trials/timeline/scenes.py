"""What a history says, as the things that a timeline shows: tenures, marks, faults and flaws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

from sinkfence_trials.checker import Violation
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.clock import StoreClock, answers
from sinkfence_trials.timeline.text import shortened

Lane = tuple[Literal["worker", "lease", "sink"], str, str]
"""Where something is shown: ("worker", name, ""), ("lease", job, "") or ("sink", job, its name)."""

Kind = Literal["request", "effect", "refusal", "unknown"]

OF_THE_STORE: Final = ("acquire", "renew", "complete", "release")
STORE: Final = "lease store"


@dataclass(frozen=True, slots=True)
class Tenure:
    """One generation of a job, from its grant until it ended or ran out, by the store's clock."""

    job: str
    generation: int
    worker: str
    begin: float
    end: float
    how: str
    """How it ended."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing that happened at one instant."""

    t: float
    kind: Kind
    lane: Lane
    worker: str
    """Whose it is."""
    generation: int | None
    words: str
    sent: float | None = None
    """When the worker set out to do it."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """An event by which the history breaks an invariant, or several."""

    t: float
    lane: Lane
    worker: str
    generation: int | None
    invariants: tuple[str, ...]
    sentences: tuple[str, ...]
    sent: float | None


@dataclass(frozen=True, slots=True)
class Armed:
    """From here on a destination has seen a generation."""

    t: float
    lane: Lane
    generation: int
    worker: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to a worker or to the store."""

    worker: str
    kind: str
    begin: float
    end: float | None
    """None for what has no length, such as a kill."""


@dataclass(slots=True)
class Scenes:
    """A whole run. All instants are those of the history's clock."""

    tenures: list[Tenure] = field(default_factory=list[Tenure])
    marks: list[Mark] = field(default_factory=list[Mark])
    flaws: list[Flaw] = field(default_factory=list[Flaw])
    armed: list[Armed] = field(default_factory=list[Armed])
    faults: list[Fault] = field(default_factory=list[Fault])
    jobs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The names of each job's destinations."""
    workers: list[str] = field(default_factory=list[str])
    begin: float = 0.0
    end: float = 0.0


def scenes(events: Iterable[Event], violations: Sequence[Violation]) -> Scenes:
    """Read a history, whose events need not be sorted."""
    own = sorted(events, key=attrgetter("t"))
    run = Scenes()
    if own:
        run.begin, run.end = own[0].t, own[-1].t
    requests = _Requests(own)
    run.tenures = _tenures(own, requests)
    run.faults = _faults(own, run.end)
    flaws: dict[tuple[Any, ...], list[Violation]] = {}
    for violation in violations:
        flaws.setdefault(_identity(violation.event), []).append(violation)
    run.jobs = _jobs(own, violations)
    for event in own:
        broken = flaws.pop(_identity(event), None)
        if broken:
            run.flaws.append(_flaw(broken, event, requests))
        elif mark := _mark(event, requests):
            run.marks.append(mark)
        if (event.f, event.type) == ("arm", "ok") and event.generation is not None:
            # An arm that names no destination was all of the job's.
            names = [event.value["sink"]] if "sink" in event.value else run.jobs[event.job]
            run.armed += [
                Armed(event.t, ("sink", event.job, name), event.generation, event.p) for name in names
            ]
    for broken in flaws.values():  # of an event that is in no file that was read
        run.flaws.append(_flaw(broken, broken[0].event, requests))
    lanes = [mark.lane for mark in run.marks] + [flaw.lane for flaw in run.flaws]
    for kind, job, sink in lanes + [armed.lane for armed in run.armed]:
        if kind == "sink" and sink not in run.jobs.setdefault(job, []):
            run.jobs[job].append(sink)
    run.workers = list(
        dict.fromkeys(
            [each for each in requests.askers if each not in (STORE, "")]
            + [flaw.worker for flaw in run.flaws if flaw.sent is not None]
            + [fault.worker for fault in run.faults]
        )
    )
    return run


def _jobs(events: list[Event], violations: Sequence[Violation]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    told = [(event.job, event) for event in events if event.job]
    # An invariant may be broken by an event of no job: nothing was applied after a heal.
    for job, event in told + [(violation.job, violation.event) for violation in violations]:
        sinks = found.setdefault(job, [])
        at_a_sink = event.f in ("effect", "write", "trace", "mark", "heal")
        if at_a_sink and (name := _sink(event)) not in sinks:
            sinks.append(name)
    return found


class _Requests:
    """Who asked for what, and when."""

    def __init__(self, events: list[Event]) -> None:
        self._writes = {
            event.value["id"]: event
            for event in events
            if (event.f, event.type) == ("write", "invoke") and "id" in event.value
        }
        # Not of an observer of the store, which answers for everybody and asks for nothing.
        self.askers = list(
            dict.fromkeys(
                event.p
                for event in events
                if event.f == "arm" or (event.type == "invoke" and event.f in (*OF_THE_STORE, "write"))
            )
        )
        self._owners: dict[str, str] = {}
        for event in events:
            if (event.f, event.type) == ("acquire", "ok") and "owner" in event.value:
                if event.p in self.askers:
                    self._owners[event.value["owner"]] = event.p
                else:
                    self._owners.setdefault(event.value["owner"], event.p)
        self._last: dict[tuple[str, str], Event] = {}
        self._asked: dict[int, Event] = {}
        for event in events:
            if event.type == "invoke":
                self._last[event.p, event.f] = event
            elif (asked := self._last.get((event.p, event.f))) is not None:
                self._asked[id(event)] = asked

    def of(self, event: Event) -> Event | None:
        """The request that led to an event."""
        if event.value.get("id") in self._writes:
            return self._writes[event.value["id"]]
        return self._asked.get(id(event))

    def worker(self, event: Event) -> str:
        """Whose an event is: an effect is told by the observer, and is its sender's."""
        if (asked := self.of(event)) is not None:
            return asked.p
        return self._owners.get(event.value.get("owner", ""), event.p)


def _identity(event: Event) -> tuple[Any, ...]:
    return (event.t, event.p, event.f, event.type, event.job, event.generation, event.key, str(event.value))


def _sink(event: Event) -> str:
    return str(event.value.get("sink", ""))


def _lane(event: Event) -> Lane:
    return ("lease", event.job, "") if event.f in OF_THE_STORE else ("sink", event.job, _sink(event))


def _mark(event: Event, requests: _Requests) -> Mark | None:
    worker = requests.worker(event)
    asked = requests.of(event)
    sent = asked.t if asked is not None else None
    step = f" of {shortened(event.key, 20, 1)}" if event.key else ""
    match event.f, event.type:
        case "write" | "complete", "invoke":
            lane: Lane = ("worker", event.p, "")
            return Mark(event.t, "request", lane, worker, event.generation, f"sets out: {event.f}{step}")
        case "effect", _:
            return Mark(
                event.t,
                "effect",
                _lane(event),
                worker,
                event.generation,
                f"write{step} took effect",
                sent,
            )
        case "write" | "arm" | "renew" | "complete" | "release", "fail":
            error = event.value.get("error")
            words = f"{event.f}{step} refused" + (f": {error}" if error else "")
            return Mark(event.t, "refusal", _lane(event), worker, event.generation, words, sent)
        case "write" | "complete", "info":
            lane = ("worker", event.p, "")
            return Mark(event.t, "unknown", lane, worker, event.generation, f"{event.f}{step}: no answer")
        case _:
            return None


def _flaw(broken: list[Violation], event: Event, requests: _Requests) -> Flaw:
    asked = requests.of(event)
    return Flaw(
        event.t,
        (_lane(event)[0], broken[0].job, _lane(event)[2]),
        requests.worker(event),
        event.generation,
        tuple(violation.invariant for violation in broken),
        tuple(violation.sentence for violation in broken),
        asked.t if asked is not None else None,
    )


def _tenures(events: list[Event], requests: _Requests) -> list[Tenure]:
    failovers = [event.t for event in events if (event.f, event.type) == ("failover", "ok")]
    clock = StoreClock(answers(events), failovers)
    found: dict[tuple[str, int, str], Tenure] = {}
    for event in events:
        if event.f not in OF_THE_STORE or event.type != "ok" or "now" not in event.value:
            continue
        generation, value = event.generation or 0, event.value
        key = event.job, generation, str(value.get("owner"))
        now = clock.here(value["now"], event.t)
        until = clock.here(value["until"], event.t) if "until" in value else now
        tenure = found.get(key)
        if event.f == "acquire":
            found[key] = Tenure(event.job, generation, requests.worker(event), now, until, "ran out")
        elif tenure is not None and tenure.how == "ran out":
            if event.f != "renew" and now >= tenure.end:
                continue  # it had run out before
            how = "ran out" if event.f == "renew" else f"{event.f}d"
            end = until if event.f == "renew" else min(tenure.end, now)
            found[key] = Tenure(event.job, generation, tenure.worker, tenure.begin, end, how)
    return list(found.values())


def _faults(events: list[Event], end: float) -> list[Fault]:
    begun: dict[tuple[str, str], float] = {}
    found: list[Fault] = []
    for event in events:
        if event.f not in ("fault", "failover"):
            continue
        kind = str(event.value.get("kind", event.f))
        target = str(event.value.get("target") or (STORE if event.f == "failover" else event.p))
        if event.type == "invoke":
            begun[kind, target] = event.t
        else:
            since = begun.pop((kind, target), None)
            found.append(Fault(target, kind, event.t if since is None else since, since and event.t))
    # What did not end lasted until the end; a kill has none.
    found += [
        Fault(target, kind, since, None if kind == "kill" else end) for (kind, target), since in begun.items()
    ]
    return sorted(found, key=attrgetter("begin"))
