"""Whether a store enforces the two conditions that fenced objects rest on, tried out on the bucket itself.

Many stores take a condition, ignore it, and answer 200. Others test it, and then write without holding
anything, so that two writers pass at once. Both look perfect until the day they are needed: so every step
compares the bytes that stand there with those that should, and the conditions are raced.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final

from botocore.exceptions import ClientError

from sinkfence.errors import NotEnforced
from sinkfence_s3.exchange import S3Client, endpoint, strong
from sinkfence_s3.trial import Problem, Trial, aside

RACERS: Final = 4
"""Per condition; both races run at once, inside the ten connections that a boto3 client keeps."""


def probe(client: S3Client, bucket: str, prefix: str = "") -> bool:
    """Try both conditions under `PREFIX.sinkfence-probe/UUID/`, and clean up.

    Takes some thirty small requests. What may not be deleted is left there, a few bytes each.

    Returns:
        Whether ETags in conditions have to be sent without their quotes.

    Raises:
        NotEnforced: a condition isn't.
        botocore's errors: no access, no bucket, no answer; nothing is concluded then.
        TimeoutError: a step took more than 30 s; nothing is concluded either.
    """
    trial = Trial(client, bucket, prefix)
    try:
        found = {name: trial.run(name, step) for name, step in STEPS.items()}
        if not any(found.values()):
            found = trial.run("races", races)
    finally:
        trial.clean()
    problems = "; ".join(f"{name}: {problem}" for name, problem in found.items() if problem)
    if problems:
        raise NotEnforced(
            f"bucket {bucket!r} at {endpoint(client)} does not enforce conditional writes ({problems}): "
            "nothing here would stop a stale owner. Use a store that honours If-None-Match and If-Match on "
            "PutObject"
        )
    return trial.bucket.bare


def races(trial: Trial, rounds: int = 1) -> dict[str, Problem]:
    """Race both conditions, at once, and say what was wrong with them."""

    def problem(kind: str, base: bytes | None) -> Problem:
        found = (_race(trial, f"{kind}-{uuid.uuid4()}", base) for _ in range(rounds))
        return next((problem for problem in found if problem), None)

    creates, swaps = aside(lambda: problem("creates", None)), aside(lambda: problem("swaps", b"base"))
    wait((creates, swaps))
    return {"race of creates": creates.result(), "race of swaps": swaps.result()}


def _create(trial: Trial) -> Problem:
    if trial.write("create", b"first", None) is None:
        return "refused, although the key was free"
    if trial.write("create", b"second", None) is not None:
        return "accepted, although the key existed: If-None-Match is ignored"
    return trial.differs("create", b"first")


def _swap(trial: Trial) -> Problem:
    first = trial.write("swap", b"one", None)
    if first is None:
        return "the key to swap could not be made"
    strong(first)
    second = trial.write("swap", b"two", first)
    if second is None:
        trial.bucket.bare = True
        second = trial.write("swap", b"two", first)
    if second is None:
        return "refused, although the ETag was the object's own"
    if second == first:
        return "other bytes have the same ETag: it names no version"
    if trial.write("swap", b"three", first) is not None:
        return "accepted, although the object had changed: If-Match is ignored"
    return trial.differs("swap", b"two")


def _missing(trial: Trial) -> Problem:
    if trial.write("missing", b"made", '"d41d8cd98f00b204e9800998ecf8427e"') is not None:
        return "accepted, although there is no such key"
    return trial.differs("missing", None)


STEPS: Final[Mapping[str, Callable[[Trial], Problem]]] = {
    "create if absent": _create,
    "swap if unchanged": _swap,
    "swap of a missing key": _missing,
}
"""What is tried before the races, which say nothing where these fail."""


def _race(trial: Trial, key: str, base: bytes | None) -> Problem:
    etag = None if base is None else trial.write(key, base, None)
    if base is not None and etag is None:  # the racers would race to create it
        return "the key to swap could not be made"
    start = threading.Barrier(RACERS)

    def racer(body: bytes) -> bool:
        start.wait()
        try:
            return trial.write(key, body, etag) is not None
        except ClientError:
            return False  # losers may see a 500 as well

    bodies = [f"racer {number}".encode() for number in range(RACERS)]
    racers = [aside(partial(racer, body)) for body in bodies]
    wait(racers)
    won = [body for body, each in zip(bodies, racers, strict=True) if each.result()]
    if len(won) > 1:
        return f"{len(won)} of {RACERS} writers were told that they had won"
    # Nobody, if the winner's answer was lost, and boto3's repetition turned it into a refusal.
    problems = [trial.differs(key, body) for body in won or bodies]
    return None if None in problems else problems[0]
