"""Whether a store enforces the two conditions that fenced objects rest on, tried out on the bucket itself.

Many stores take a condition, ignore it, and answer 200. Others test it, and then write without holding
anything, so that two writers pass at once. Both look perfect until the day they are needed: so every step
compares the bytes that stand there with those that should, and the conditions are raced.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from sinkfence_s3.store import Exchange, S3Client, Store, settled, status, strong, worth_repeating

FOLDER: Final = ".sinkfence-probe"
RACERS: Final = 4
"""Per condition; both races run at once, inside the ten connections that a boto3 client keeps."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    problem: str | None
    """What went wrong, or None."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probe found."""

    checks: tuple[Check, ...]
    bare_etags: bool
    """Whether the store wants ETags without their quotes in conditions."""
    versioning: str
    """Enabled, Suspended, Off, or unknown where it may not be asked: reported, not judged, for the races are
    run in the bucket as it is."""

    @property
    def problem(self) -> str | None:
        """The first problem, or None if the conditions are enforced."""
        return next((f"{check.name}: {check.problem}" for check in self.checks if check.problem), None)


def probe(client: S3Client, bucket: str, prefix: str = "") -> Verdict:
    """Try both conditions under `PREFIX.sinkfence-probe/UUID/`, and clean up.

    Takes some thirty small requests. What may not be deleted is left there, a few bytes each.

    Raises:
        botocore's errors: no access, no bucket, no answer; nothing is concluded then.
    """
    trial = _Trial(Store(client, bucket), f"{prefix}{FOLDER}/{uuid.uuid4()}/")
    try:
        checks = [
            Check("create if absent", _create(trial)),
            Check("swap if unchanged", _swap(trial)),
            Check("swap of a missing key", _missing(trial)),
        ]
        if not any(check.problem for check in checks):
            with ThreadPoolExecutor(2) as pool:
                creates = pool.submit(_race, trial, "race-create", None)
                swaps = pool.submit(_race, trial, "race-swap", b"base")
            checks += [
                Check("race of creates", creates.result()),
                Check("race of swaps", swaps.result()),
            ]
        return Verdict(tuple(checks), trial.store.bare, _versioning(trial.store))
    finally:
        trial.clean()


class _Trial:
    """The keys of one probe."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = folder
        self.made: list[tuple[str, str | None]] = []

    def write(self, name: str, body: bytes, etag: str | None) -> str | None:
        """Return the new ETag, or None if the store refused.

        An answer that may be a lost success (5xx, or after a repetition by boto3) is raised: no verdict.
        """
        exchange = Exchange(self.store, self.folder + name)
        try:
            new = exchange.write(body, etag)
        except ClientError as error:
            if status(error) == 501 or (settled(error) and worth_repeating(error)):
                return None  # 501: a store that says by itself that it knows no conditions
            raise
        self.made.append((exchange.key, exchange.version))
        return new

    def bytes_at(self, name: str) -> bytes | None:
        stored = Exchange(self.store, self.folder + name).read(1024)
        return None if stored is None else stored.data

    def clean(self) -> None:
        for key, version in self.made:
            which = {} if version is None else {"VersionId": version}
            # Credentials that may not delete, or a connection lost now, are no reason to refuse the bucket.
            with suppress(ClientError, BotoCoreError):
                self.store.client.delete_object(Bucket=self.store.bucket, Key=key, **which)


def _create(trial: _Trial) -> str | None:
    if trial.write("create", b"first", None) is None:
        return "refused, although the key was free"
    if trial.write("create", b"second", None) is not None:
        return "accepted, although the key existed: If-None-Match is ignored"
    return _differs(trial, "create", b"first")


def _swap(trial: _Trial) -> str | None:
    first = trial.write("swap", b"one", None)
    if first is None:
        return "the key to swap could not be made"
    strong(first)
    second = trial.write("swap", b"two", first)
    if second is None:
        trial.store.bare = True
        second = trial.write("swap", b"two", first)
    if second is None:
        return "refused, although the ETag was the object's own"
    if second == first:
        return "other bytes have the same ETag: it names no version"
    if trial.write("swap", b"three", first) is not None:
        return "accepted, although the object had changed: If-Match is ignored"
    return _differs(trial, "swap", b"two")


def _missing(trial: _Trial) -> str | None:
    if trial.write("missing", b"made", '"d41d8cd98f00b204e9800998ecf8427e"') is not None:
        return "accepted, although there is no such key"
    return _differs(trial, "missing", None)


def _race(trial: _Trial, key: str, base: bytes | None) -> str | None:
    etag = None if base is None else trial.write(key, base, None)
    start = threading.Barrier(RACERS)

    def racer(body: bytes) -> bool:
        start.wait()
        try:
            return trial.write(key, body, etag) is not None
        except ClientError:
            return False  # losers may see a 500 as well

    bodies = [f"racer {number}".encode() for number in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as pool:
        won = [body for body, accepted in zip(bodies, pool.map(racer, bodies), strict=True) if accepted]
    if len(won) > 1:
        return f"{len(won)} of {RACERS} writers were told that they had won"
    # Nobody: the winner's answer was lost, and boto3's repetition turned it into a refusal.
    return _differs(trial, key, won[0]) if won else None


def _differs(trial: _Trial, name: str, expected: bytes | None) -> str | None:
    there = trial.bytes_at(name)
    return None if there == expected else f"{there!r} stands there instead of {expected!r}"


def _versioning(store: Store) -> str:
    try:
        return str(store.client.get_bucket_versioning(Bucket=store.bucket).get("Status", "Off"))
    except ClientError as error:
        return f"unknown ({status(error)})"
