"""The goals that the design set, where each is measured, and what stands in the way of those missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bench.race import Figure, Goal, Result, Standing
from bench.report import Item, shown


@dataclass(frozen=True)
class Aim:
    """A goal of the design."""

    says: str
    bench: str
    title: str
    """Of the race or the figure; `*` stands for a count that no goal depends on."""
    name: str = ""
    """Of the contestant; none: a figure."""
    why: str = ""
    """Why it is missed where it is."""
    ahead_of: tuple[str, ...] = ()
    """Contestants of the same race, in place of a bound."""


LATER = "PostgreSQL computes more for a guarded transaction: two functions, and the check inside COMMIT"
ROUTE = "the door watches what the handler answers, so that a refusal at its commit becomes 412"
ANSWERS = "each statement checks its row, counts its ttl after the row is locked, and returns what it did"

AIMS = (
    Aim(
        "10 ms of work in a transaction, 8 clients, one job: 0.95 of the unguarded rate",
        *("postgres", "8 clients, 10 ms of work inside, 1 job", "transaction()", LATER),
    ),
    Aim(
        "the same over 1,000 jobs: 0.93",
        *("postgres", "8 clients, 10 ms of work inside, 1000 jobs", "transaction()", LATER),
    ),
    Aim(
        "one row in one message: 1.35 of the bare transaction",
        *("postgres", "one-row transaction in one message, synchronous_commit on", "guarded", LATER),
    ),
    Aim(
        "the same where COMMIT waits for no disk",
        *("postgres", "one-row transaction in one message, synchronous_commit off", "guarded", LATER),
    ),
    Aim(
        "the generation column: 1.00",
        *("postgres", "one-row transaction in one message, synchronous_commit on", "row column"),
        "no more than the control is off: the statement has one condition more",
    ),
    Aim(
        "the same where COMMIT waits for no disk",
        *("postgres", "one-row transaction in one message, synchronous_commit off", "row column"),
        "the statement has one condition more, and no disk hides it",
    ),
    *(
        Aim(
            f"nothing is left behind by {way}: {what}",
            *("postgres", f"{title}, {way}"),
            why="the server's own log records of now and then are in it",
        )
        for way in ("transaction()", "guard(lock=True)")
        for what, title in (
            ("no WAL", "extra WAL per transaction"),
            ("no dead row of a mark", "new versions of the mark"),
            ("no MultiXact", "MultiXacts"),
        )
    ),
    *(
        Aim(
            f"a successor arms behind 8 writers by {way} within 100 ms, the slowest of all",
            *("postgres", f"the slowest arm of *, {way}"),
            why="a core was not to be had for so long",
        )
        for way in ("transaction()", "guard(lock=True)")
    ),
    Aim(
        "acquire, renew and complete, 8 clients: 0.95 of three plain UPDATEs",
        *("leases", "acquire, renew and complete, 8 clients", "sinkfence", ANSWERS),
    ),
    Aim(
        "ahead of every lease library for PostgreSQL that installs",
        *("leases", "acquire, renew and complete, 8 clients", "sinkfence"),
        "stormlock counts nothing and keeps nothing: its statements are plain ones",
        ahead_of=("stormlock", "sentinel", "mithril"),
    ),
    Aim(
        "10,000 leases renewed in one statement within 150 ms",
        *("leases", "the median batch"),
        why="each row is locked, compared and written anew",
    ),
    *(
        Aim(f"{says}: {number} request{'s' * (number > 1)}", "s3", title)
        for says, title, number in (
            ("an owner's write up to 1 MiB", "an owner's write up to 1 MiB", 1),
            ("an owner's write above that", "an owner's write of 2 MiB", 2),
            ("a new owner's arming", "a new owner's arming", 2),
            ("its next write", "its next write", 1),
            ("a new owner's first write, unarmed", "a new owner's first write, unarmed", 2),
            ("the same above 1 MiB", "the same of 2 MiB", 3),
        )
    ),
    Aim(
        "1 kB: 1.15 of put_object's time",
        *("s3", "an owner's write, 1 kB", "fenced put"),
        "the header, the last 64 entries and a SHA-256 go with each write: 13 KiB more",
    ),
    Aim(
        "64 kB: 1.15",
        *("s3", "an owner's write, 64 kB", "fenced put"),
        "the same, beside more content",
    ),
    Aim(
        "1 MB: 1.10",
        *("s3", "an owner's write, 1024 kB", "fenced put"),
        "one request as well, whose content is hashed twice: 0.75 ms for the second SHA-256",
    ),
    Aim("64 MB in parts: 1.2", "s3", "an owner's write, 64 MB in parts of 8 MB", "fenced put"),
    *(
        Aim(
            f"{size} kB: ahead of HEAD and `If-Match` by hand",
            *("s3", f"an owner's write, {size} kB", "fenced put"),
            "by hand it is two requests as well, and one of them is small",
            ahead_of=("HEAD, then If-Match by hand",),
        )
        for size in (1, 64, 1024)
    ),
    Aim(
        "8 threads: 0.85 of put_object's rate",
        *("s3", "8 threads, 64 kB", "fenced put"),
        "threads of one Python share its lock, and what a write computes is longer",
    ),
    Aim(
        "the door before an ASGI application, a cached token: 3 µs of CPU",
        *("http", "what the door adds to a call, a cached token"),
        why=ROUTE,
    ),
    Aim(
        "FastAPI under uvicorn: 1.02 of the bare application's CPU time",
        *("http", "FastAPI under uvicorn", "fenced", ROUTE),
    ),
    Aim("Flask: 1.10", "http", "Flask, called", "fenced", ROUTE),
)


@dataclass(frozen=True)
class Verdict:
    """What became of a goal."""

    aim: Aim
    measured: str
    met: bool


def judge(aim: Aim, items: list[Item]) -> Verdict:
    """Look a goal up in a benchmark's results.

    Raises:
        LookupError: they don't have it: this file is behind the benchmark, or the results are.
    """
    for item in items:
        if isinstance(item, Figure) and not aim.name and fnmatchcase(item.title, aim.title):
            return Verdict(aim, f"{item.value:.4g} {item.unit}", _goal(aim, item.goal).met(item.value))
        if isinstance(item, Result) and aim.name and fnmatchcase(item.title, aim.title):
            standings = {standing.name: standing for standing in item.standings}
            ours = standings[aim.name]
            if aim.ahead_of:
                others = {name: standings[name] for name in aim.ahead_of if name in standings}
                return _ahead(aim, ours, others, item.better)
            low, high = map(shown, ours.quartiles)
            met = _goal(aim, ours.goal).met(ours.ratio)
            return Verdict(aim, f"{shown(ours.ratio)} ({low} to {high})", met)
    raise LookupError(f"{aim.bench} has not measured {aim.title!r} {aim.name}")


def _goal(aim: Aim, goal: Goal | None) -> Goal:
    if goal is None:
        raise LookupError(f"{aim.bench} has no goal for {aim.title!r} {aim.name}")
    return goal


def _ahead(aim: Aim, ours: Standing, others: Mapping[str, Standing], better: str) -> Verdict:
    if not others:
        raise LookupError(f"{aim.bench}: {aim.title!r} was run without {', '.join(aim.ahead_of)}")
    best = (min if better == "low" else max)(other.ratio for other in others.values())
    told = ", ".join(f"{name} {shown(other.ratio)}" for name, other in others.items())
    met = ours.ratio < best if better == "low" else ours.ratio > best
    return Verdict(aim, f"{shown(ours.ratio)}; {told}", met)
