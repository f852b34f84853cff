"""The named scenarios: each one fault, played with real processes and servers, and judged by the checker."""

from collections.abc import Mapping
from typing import Final

from sinkfence_trials.torture.scenarios import clocks, crowd, full, killed, late, pooled, promoted, within
from sinkfence_trials.torture.scenarios.scenario import Scenario, Verdict, perform

__all__ = ["SCENARIOS", "Scenario", "Verdict", "perform"]

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "stopped-transaction": Scenario(
        "An owner is stopped (SIGSTOP) with its COMMIT under way, and its successor writes.",
        late.stopped("postgres"),
    ),
    "stopped-upload": Scenario(
        "An owner is stopped with its PUT to S3 under way, and its successor writes.", late.stopped("s3")
    ),
    "stopped-request": Scenario(
        "An owner is stopped with its HTTP request under way, and its successor writes.",
        late.stopped("http"),
    ),
    "dead-transaction": Scenario(
        "An owner's COMMIT is delivered after its sender was killed and its successor has written.",
        late.dead("postgres"),
    ),
    "dead-upload": Scenario(
        "An owner's PUT is delivered after its sender was killed and its successor has written.",
        late.dead("s3"),
    ),
    "dead-request": Scenario(
        "An owner's HTTP request is delivered after its sender was killed and its successor has written.",
        late.dead("http"),
    ),
    "killed-worker": Scenario(
        "A worker is killed (kill -9) before it hears of its COMMIT, and its successor repeats the step.",
        killed.worker,
    ),
    "killed-postmaster": Scenario(
        "PostgreSQL is killed (kill -9) within COMMIT, before its record is written and after it.",
        killed.postmaster,
    ),
    "lossy-promotion": Scenario(
        "A standby of the lease store is promoted that has not heard of the last acquisition.",
        promoted.lossy(None),
    ),
    "lossy-promotion-clock": Scenario(
        'The same, with a store that counts by the clock (floor="clock").', promoted.lossy("clock")
    ),
    "disk-full": Scenario(
        "The disk of the effects is full while an owner writes, while its successor does, and afterwards.",
        full.disk,
    ),
    "wrong-clocks": Scenario(
        "Workers' clocks are an hour slow, an hour fast, and run at double rate.", clocks.wrong
    ),
    "jumping-clock": Scenario(
        "A holder's clock jumps an hour back and two hours forth under its heartbeat.", clocks.jumping
    ),
    "fork": Scenario("An owner forks, and its child goes on with what it has inherited.", within.forked),
    "held-gil": Scenario(
        "A C call keeps an owner's GIL past its ttl, so that no heartbeat runs, and its successor writes.",
        within.gil,
    ),
    "blocked-loop": Scenario("An owner's event loop is blocked past its ttl.", within.loop),
    "crowd": Scenario("64 processes want one job at the same moment.", crowd.acquirers),
    "pooler": Scenario(
        "Owners go through PgBouncer in transaction mode, and one is stopped with its COMMIT under way.",
        pooled.pooler,
    ),
}
