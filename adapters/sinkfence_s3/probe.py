"""Whether a store enforces the two conditions that fenced objects rest on, tried out on the bucket itself.

Many stores take a condition, ignore it, and answer 200. Others test it, and then write without holding
anything, so that two writers pass at once. Both look perfect until the day they are needed: so every step
compares the bytes that stand there with those that should, and the conditions are raced.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from sinkfence.errors import NotEnforced
from sinkfence_s3.answers import nothing_written, refused, status
from sinkfence_s3.exchange import Bucket, Exchange, S3Client, endpoint, strong
from sinkfence_s3.keys import PROBES, check_prefix

RACERS: Final = 4
"""Per condition; both races run at once, inside the ten connections that a boto3 client keeps."""
PATIENCE: Final = 30.0
"""Seconds for one step, whatever the client's timeouts are: some stores let who lost a race wait a while."""

GRACE: Final = 5.0
"""Seconds that requests still under way have to end, before what was made is deleted."""

T = TypeVar("T")
Problem = str | None
"""What went wrong, or None."""


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


class Trial:
    """The keys of one probe; at its end they go, with `clean`."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self.bucket: Bucket = Bucket(client, bucket)
        self.folder: str = f"{check_prefix(prefix)}{PROBES}/{uuid.uuid4()}/"
        self.left: int = 0
        """How many keys `clean` could not delete."""
        self._made: set[tuple[str, str | None]] = set()
        self._at_rest = threading.Condition()
        """Guards these, which the threads of a step go on to change when it was given up, or interrupted."""
        self._under_way: int = 0
        self._over: bool = False

    @property
    def made(self) -> int:
        """How many keys were made, or may have been."""
        return len(self._made)

    def run(self, name: str, step: Callable[[Trial], T]) -> T:
        """Return what a step returns.

        Raises:
            TimeoutError: it took more than PATIENCE. Its request goes on in its thread, and is nobody's then.
        """
        result = _aside(lambda: step(self))
        try:
            return result.result(PATIENCE)
        except TimeoutError:
            if result.done():
                raise
            raise TimeoutError(
                f"bucket {self.bucket.name!r} gave no answer within {PATIENCE:.0f} s ({name}): nothing is "
                "known of it, and nothing but the probe's own keys was written. Try again when it answers"
            ) from None

    def write(self, name: str, body: bytes, etag: str | None, **extra: Any) -> str | None:
        """Return the new ETag, or None if the store refused.

        An answer that may be a lost success (5xx, or after a repetition by boto3) is raised: no verdict.
        """
        exchange = Exchange(self.bucket, self.folder + name)
        made = True
        with self._awaited():
            try:
                return exchange.write(body, etag, **extra)
            except ClientError as error:
                knows_none = status(error) == 501  # a store that says by itself that it knows no conditions
                made = not (knows_none or nothing_written(error))
                if knows_none or (refused(error) and not made):
                    return None
                raise
            except Exception as error:
                made = isinstance(error, HTTPClientError)  # it was connected, so it may have arrived
                raise
            finally:
                if made:
                    self._note(exchange.key, exchange.version)

    def send(self, name: str, call: Callable[..., Any], **parameters: Any) -> None:
        """Make another request about a key, which may leave a version of its own there."""
        exchange = Exchange(self.bucket, self.folder + name)
        with self._awaited():
            response = exchange.send(call, **parameters)
            self._note(exchange.key, response.get("VersionId"))

    @contextmanager
    def _awaited(self) -> Generator[None]:
        """Keep `clean` waiting for a request that may make something; none is begun after it."""
        with self._at_rest:
            if self._over:
                raise TimeoutError("the probe is over")  # to a thread that nobody listens to
            self._under_way += 1
        try:
            yield
        finally:
            with self._at_rest:
                self._under_way -= 1
                self._at_rest.notify_all()

    def _note(self, key: str, version: str | None) -> None:
        with self._at_rest:
            self._made.add((key, version))

    def differs(self, name: str, expected: bytes | None) -> Problem:
        """Compare the bytes that stand there."""
        stored = Exchange(self.bucket, self.folder + name).read(1024)
        there = None if stored is None else stored.data
        return None if there == expected else f"{there!r} stands there instead of {expected!r}"

    def clean(self) -> None:
        """Delete what was made, as far as the credentials allow; nothing is written from now on."""
        with self._at_rest:
            self._over = True
            self._at_rest.wait_for(lambda: not self._under_way, GRACE)
            made = frozenset(self._made)
        self.left = len(made)

        def delete(_: Trial) -> None:
            for key, version in made:
                which = {} if version is None else {"VersionId": version}
                # Credentials that may not delete, or a connection lost now, are no reason to refuse it.
                with suppress(ClientError, BotoCoreError):
                    self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key, **which)
                    self.left -= 1

        with suppress(TimeoutError):
            self.run("clean up", delete)


def races(trial: Trial, rounds: int = 1) -> dict[str, Problem]:
    """Race both conditions, at once, and say what was wrong with them."""

    def problem(kind: str, base: bytes | None) -> Problem:
        found = (_race(trial, f"{kind}-{uuid.uuid4()}", base) for _ in range(rounds))
        return next((problem for problem in found if problem), None)

    creates, swaps = _aside(lambda: problem("creates", None)), _aside(lambda: problem("swaps", b"base"))
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
    racers = [_aside(partial(racer, body)) for body in bodies]
    wait(racers)
    won = [body for body, each in zip(bodies, racers, strict=True) if each.result()]
    if len(won) > 1:
        return f"{len(won)} of {RACERS} writers were told that they had won"
    # Nobody, if the winner's answer was lost, and boto3's repetition turned it into a refusal.
    problems = [trial.differs(key, body) for body in won or bodies]
    return None if None in problems else problems[0]


def _aside(call: Callable[[], T]) -> Future[T]:
    """Call in a thread of its own. No pool: at the interpreter's end it would wait for a call that hangs."""
    result: Future[T] = Future()

    def target() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
            result.set_exception(error)

    threading.Thread(target=target, name="sinkfence probe", daemon=True).start()
    return result
