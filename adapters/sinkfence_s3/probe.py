"""Whether a store enforces the two conditions that fenced objects rest on, tried out on the bucket itself.

Many stores take a condition, ignore it, and answer 200. Others test it, and then write without holding
anything, so that two writers pass at once. Both look perfect until the day they are needed: so every check
compares the bytes that stand there with those that should, and the conditions are raced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from sinkfence.errors import NotEnforced
from sinkfence_s3.exchange import S3Client, endpoint
from sinkfence_s3.trial import Problem, Trial, aside, fresh

RACERS: Final = 4
"""Writers in each race. The two races run at once, and fit into the ten connections of a boto3 client."""


def probe(client: S3Client, bucket: str, prefix: str = "") -> bool:
    """Try both conditions under `PREFIX.sinkfence-probe/UUID/`, and clean up.

    Takes some thirty small requests; a check whose answers were unclear is begun anew, three times at most.
    What may not be deleted is left there, a few bytes each.

    Returns:
        Whether ETags in conditions have to be sent without their quotes.

    Raises:
        NotEnforced: a condition isn't.
        botocore's errors: no access, no bucket, no answer; nothing is concluded then.
        TimeoutError: a check took more than 30 s; nothing is concluded either.
    """
    trial = Trial(client, bucket, prefix)
    try:
        problems = {name: trial.run(name, check) for name, check in CHECKS.items()}
        if not any(problems.values()):
            problems = trial.run("races", races)
    except (ClientError, BotoCoreError) as error:
        error.add_note(
            f"bucket {bucket!r} was tried out here, before the process's first write to it: nothing was put "
            "so far, and nothing is known of the bucket"
        )
        raise
    finally:
        trial.clean()
    not_enforced = "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)
    if not_enforced:
        raise NotEnforced(
            f"bucket {bucket!r} at {endpoint(client)} does not enforce conditional writes ({not_enforced}): "
            "nothing here would stop a stale owner. Use a store that honours If-None-Match and If-Match on "
            "PutObject"
        )
    return trial.bucket.bare


def races(trial: Trial, rounds: int = 1) -> dict[str, Problem]:
    """Race both conditions, at once, and say what was wrong with them."""

    def problem(kind: str, base: bytes | None) -> Problem:
        problems = (_race(trial, fresh(kind), base) for _ in range(rounds))
        return next((problem for problem in problems if problem), None)

    creates, swaps = aside(lambda: problem("creates", None)), aside(lambda: problem("swaps", b"base"))
    wait((creates, swaps))
    return {"race of creates": creates.result(), "race of swaps": swaps.result()}


def _create(trial: Trial) -> Problem:
    key = fresh("create")
    if trial.write(key, b"first", None) is None:
        return "refused, although the key was free"
    if trial.write(key, b"second", None) is not None:
        return "accepted, although the key existed: If-None-Match is ignored"
    return trial.differs(key, b"first")


def _swap(trial: Trial) -> Problem:
    key, trial.bucket.bare = fresh("swap"), False
    first = trial.write(key, b"one", None)
    if first is None:
        return "the key to swap could not be made"
    second = trial.write(key, b"two", first)
    if second is None:
        trial.bucket.bare = True
        second = trial.write(key, b"two", first)
    if second is None:
        return "refused, although the ETag was the object's own"
    if second == first:
        return "other bytes have the same ETag: it names no version"
    if trial.write(key, b"three", first) is not None:
        return "accepted, although the object had changed: If-Match is ignored"
    return trial.differs(key, b"two")


def _missing(trial: Trial) -> Problem:
    key = fresh("missing")
    if trial.write(key, b"made", '"d41d8cd98f00b204e9800998ecf8427e"') is not None:
        return "accepted, although there is no such key"
    return trial.differs(key, None)


CHECKS: Final[Mapping[str, Callable[[Trial], Problem]]] = {
    "create if absent": _create,
    "swap if unchanged": _swap,
    "swap of a missing key": _missing,
}
"""What is tried before the races, which say nothing where these fail."""


def _race(trial: Trial, key: str, base: bytes | None) -> Problem:
    etag = None if base is None else trial.write(key, base, None)
    if base is not None and etag is None:  # without an ETag to compare, the racers would race to create it
        return "the key to swap could not be made"
    start = threading.Barrier(RACERS)
    unclear: list[ClientError] = []

    def racer(body: bytes) -> bool:
        start.wait()
        try:
            return trial.write(key, body, etag) is not None
        except ClientError as error:  # some stores answer 500 to a racer that lost
            unclear.append(error)
            return False

    bodies = [f"racer {number}".encode() for number in range(RACERS)]
    racers = [aside(partial(racer, body)) for body in bodies]
    wait(racers)
    won = [body for body, each in zip(bodies, racers, strict=True) if each.result()]
    if len(won) > 1:
        return f"{len(won)} of {RACERS} writers were told that they had won"
    # Perhaps no racer knows that it won: the winner's answer was lost, or was a 500. Any one's bytes will do.
    problems = [trial.differs(key, body) for body in won or bodies]
    if None in problems:
        return None
    if unclear and not won:  # a store that was too busy for all of them is not judged
        raise unclear[0]
    return problems[0]
