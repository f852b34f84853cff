"""A bucket whose store has shown that it enforces conditions: where fenced objects live."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from typing import Literal

from sinkfence.process import Process, this_process
from sinkfence_s3.bodies import BodyLike
from sinkfence_s3.data import MAX_SUFFIX
from sinkfence_s3.exchange import Bucket, Exchange, S3Client, endpoint
from sinkfence_s3.keys import MAX_KEY, check_key, check_prefix
from sinkfence_s3.objects import FencedObject
from sinkfence_s3.once import put_once
from sinkfence_s3.orphans import collect
from sinkfence_s3.probe import probe
from sinkfence_s3.put import Written

# What has passed the probe in this process: endpoint, bucket and prefix, and whether the store wants ETags
# without their quotes. All FencedBuckets share it, as it is true of the store. A failure is not kept: once
# the store is mended, the next write passes.
_passed: dict[tuple[str, str, str], bool] = {}


class FencedBucket:
    """Where fenced objects are made; opens nothing until the first read or write.

    Args:
        client: of boto3 (`boto3.client("s3")`), with whatever retries and timeouts it has.
        bucket: its name.
        prefix: stands before every name; up to 900 UTF-8 bytes.
        probe: "once" tries out before the first write of this process whether the store enforces
            conditions; "never" trusts it unseen, and sends ETags just as they came (not for Ceph 18).

    Raises:
        TypeError, ValueError: a wrong argument; a client whose endpoint_url holds a user or a password.
    """

    def __init__(
        self, client: S3Client, bucket: str, *, prefix: str = "", probe: Literal["once", "never"] = "once"
    ) -> None:
        if probe not in ("once", "never"):
            raise ValueError(f"probe is 'once' or 'never', not {probe!r}")
        self._prefix: str = check_prefix(prefix)
        self._bucket = Bucket(client, bucket)
        self._probe = probe
        self._locks: dict[Process, threading.Lock] = {}

    def object(self, name: str) -> FencedObject:
        """Return the fenced object of this name: a sink to arm, put to and get from. No request is made.

        Raises:
            TypeError, ValueError: no name for an object. `NAME.d` and `NAME.d/...` belong to the object NAME.
        """
        key = self._key(name)
        if len(key.encode()) > MAX_KEY - MAX_SUFFIX:
            raise ValueError(
                f"the key of a fenced object has at most {MAX_KEY - MAX_SUFFIX} UTF-8 bytes, prefix "
                "included: those of its data objects are longer"
            )
        return FencedObject(self._bucket, key, self._ensure_enforced)

    def put_once(self, name: str, body: BodyLike, *, step: str) -> Written:
        """Create an immutable object of raw bytes, readable by anybody, up to 5 GiB.

        **De-duplication and no fence**: the first creator wins, whatever its generation. So it takes no
        bearer, and `Written.generation` is None. A repetition of the step with the same content is
        recognised, for ever. It is one request, whatever its size; a body of more than 8 MiB is copied to a
        temporary file first, as its digest travels before it and it may have to be sent again.

        Raises:
            IdempotencyMismatch: another step's object, other content or a fenced object is at this key; it
                stays as it is.
            OutcomeUnknown: sent, and its fate cannot be read: repeat it under the same step.
            SchemaMismatch: the store keeps keys as paths, and has others below this one.
            NotEnforced: the store ignores conditions.
            TypeError, ValueError: a malformed name, body or step; more than 5 GiB.
        """
        return put_once(Exchange(self._bucket, self._key(name)), body, step, self._ensure_enforced)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the names that begin so, in the store's order; one request for each thousand keys.

        An object that was only armed or was deleted still has its register, and is listed; so is what
        `put_once` made. To tell them apart costs a request for each name: `object(name).stat()`.

        Raises:
            TypeError: prefix is no str.
        """
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a prefix must be a str, not {type(prefix).__name__}")
        return self._names(prefix)

    def collect(self, name: str) -> builtins.list[str]:
        """Remove what older generations of an object's owners left behind; return the keys removed.

        Contents that were replaced, uploads that were refused or never finished. What the present generation
        left waits for the next. Takes no bearer: it is safe whoever runs it, however late. A reader that has
        an old content open may be cut off.

        Raises:
            SchemaMismatch: something else than a fenced object is at this key: nothing is removed.
            botocore's errors: no permission to list or to delete, say.
        """
        return collect(self._bucket, self._key(name))

    def _names(self, prefix: str) -> Iterator[str]:
        pages = self._bucket.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket.name, Prefix=self._prefix + prefix):
            for item in page.get("Contents", ()):
                name = item["Key"].removeprefix(self._prefix)
                try:
                    self._key(name)
                except ValueError:  # the key of a data object, of a probe, or of a stranger
                    continue
                yield name

    def _key(self, name: str) -> str:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a name must be a str, not {type(name).__name__}")
        if not name or name.endswith("/"):
            raise ValueError("a name must not be empty, nor end in '/'")
        return check_key(self._prefix + name)

    def _ensure_enforced(self) -> None:
        if self._probe == "never":
            return
        place = (endpoint(self._bucket.client), self._bucket.name, self._prefix)
        if place not in _passed:
            # Where several threads begin to write at once, one probes and the others wait for its verdict.
            # Each process has a lock of its own: a child that was forked meanwhile has the parent's lock as
            # it was, and not the thread that would release it.
            with self._locks.setdefault(this_process(), threading.Lock()):
                if place not in _passed:
                    _passed[place] = probe(self._bucket.client, self._bucket.name, self._prefix)
        self._bucket.bare = _passed[place]
