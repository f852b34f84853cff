"""A trial: keys of a bucket on which a store is tried out, and which are deleted at its end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from sinkfence.errors import NotEnforced
from sinkfence_s3.answers import condition_failed, no_answer, nothing_written, retries, status, transient
from sinkfence_s3.delivery import persist
from sinkfence_s3.exchange import Bucket, Exchange, S3Client, strong
from sinkfence_s3.keys import PROBES, check_prefix

PATIENCE: Final = 30.0
"""Seconds for one task, whatever the client's timeouts are: some stores let who lost a race wait a while."""
GRACE: Final = 5.0
"""Seconds that requests still under way have to end, before what was made is deleted."""

T = TypeVar("T")
Problem = str | None
"""What went wrong, or None."""


class Trial:
    """The keys of one probe or doctor; at its end `clean` deletes them."""

    def __init__(self, client: S3Client, bucket: str, prefix: str) -> None:
        self.bucket: Bucket = Bucket(client, bucket)
        self.folder: str = f"{check_prefix(prefix)}{PROBES}/{uuid.uuid4()}/"
        self.left: int = 0
        """How many keys `clean` could not delete."""
        self._made: set[tuple[str, str | None]] = set()
        self._at_rest = threading.Condition()
        """Guards `_made`, `_under_way` and `_over`, as the threads of a task that was given up go on."""
        self._under_way: int = 0
        self._over: bool = False

    @property
    def made(self) -> int:
        """How many keys were made, or may have been."""
        return len(self._made)

    def run(self, name: str, task: Callable[[Trial], T]) -> T:
        """Return what a task returns; it is begun anew, with keys of its own, where an answer was unclear.

        Raises:
            TimeoutError: it took more than PATIENCE. Its request goes on in its thread, and nobody waits.
        """
        result = aside(lambda: persist(lambda: task(self), repeat_if=_worth_another_run))
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

        Raises:
            NotEnforced: there is no ETag, or a weak one.
        """
        exchange = Exchange(self.bucket, self.folder + name)
        made = True
        with self._awaited():
            try:
                return strong(exchange.write(body, etag, **extra) or "")
            except ClientError as error:
                no_conditions = status(error) == 501  # the store says by itself that it has none
                made = not (no_conditions or nothing_written(error))
                if no_conditions or (condition_failed(error) and not made):
                    return None
                raise
            except Exception as error:
                # A connection was made, so the request may have arrived.
                made = isinstance(error, HTTPClientError | NotEnforced)
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
        """Say what stands there, unless it is just the expected bytes."""
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
                of_version = {} if version is None else {"VersionId": version}
                delete_one = partial(
                    Exchange(self.bucket, key).send, self.bucket.client.delete_object, **of_version
                )
                # Neither credentials that may not delete nor a connection lost now speak against the bucket.
                with suppress(ClientError, BotoCoreError):
                    persist(delete_one, repeat_if=_worth_another_run)
                    self.left -= 1

        with suppress(TimeoutError):
            self.run("clean up", delete)


def fresh(name: str) -> str:
    """Return a name that nothing was written to: an earlier run of the same task may have left something."""
    return f"{name}-{uuid.uuid4()}"


def _worth_another_run(error: Exception) -> bool:
    """Whether a task may end well once it is begun anew: the store was busy, or was sent a write twice.

    It is not after boto3 has repeated the request in vain, nor where nobody could be reached: most likely the
    address is wrong then, and whoever gave it wants to hear so soon.
    """
    if not isinstance(error, ClientError):
        return no_answer(error) and not isinstance(error, ConnectionError)
    return condition_failed(error) if retries(error.response) else transient(error)


def aside(call: Callable[[], T]) -> Future[T]:
    """Call in a thread of its own. No pool: at the interpreter's end it would wait for a call that hangs."""
    result: Future[T] = Future()

    def target() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
            result.set_exception(error)

    threading.Thread(target=target, name="sinkfence probe", daemon=True).start()
    return result
