"""The requests that fenced objects are made of: read, and write under a condition.

`PutObject` with `If-None-Match: *` or `If-Match` is all that is relied on: the one conditional operation
that proved atomic on every store that honours conditions at all. Deletes, copies and multipart completions
under conditions did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import urlsplit

from botocore.exceptions import ClientError, IncompleteReadError

from sinkfence.errors import NotEnforced
from sinkfence_s3.answers import code, retries, status

_sending: Final = ContextVar("sinkfence_s3 sending", default=False)
"""Whether the request that this thread makes has begun to be sent."""

S3Client = Any
"""What `boto3.client("s3")` returns, a class made at run time. Its retries and timeouts are the user's."""


class Bucket:
    """One bucket, as one client reaches it."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        meta = getattr(client, "meta", None)
        if not hasattr(meta, "events"):
            # What boto3.resource("s3") returns has its client there.
            mend = "pass its .meta.client" if hasattr(meta, "client") else "make one by boto3.client('s3')"
            raise TypeError(f"client must be a boto3 S3 client, not {type(client).__name__}: {mend}")
        # An aiobotocore client looks just the same, and answers with coroutines.
        if (service := client.meta.service_model.service_name) != "s3" or hasattr(client, "__aenter__"):
            kind = "an async one" if service == "s3" else f"a client of {service}"
            raise TypeError(f"client must be a boto3 S3 client, not {kind}: make one by boto3.client('s3')")
        if not isinstance(bucket, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"bucket must be a str, its name, not {type(bucket).__name__}")
        if not bucket:
            raise ValueError("bucket must be the name of a bucket, and is empty")
        # boto3's own errors tell the whole URL, and end in logs.
        if "@" in urlsplit(str(client.meta.endpoint_url)).netloc:
            raise ValueError(
                "the client's endpoint_url has a user or a password in it, which S3 takes no notice of, and "
                "errors show: leave them out, and give boto3 its credentials by other means"
            )
        # Before all other handlers: one of them may answer in S3's place, and no later one is called then.
        # By its unique_id it is there once for each client, however many buckets are made with it.
        client.meta.events.register_first("before-send.s3.PutObject", _note_sending, unique_id="sinkfence")
        self.client = client
        self.name: str = str.__str__(bucket)  # of a str Enum boto3 would write its member's name
        self.bare: bool = False
        """Whether the store wants ETags in conditions without their quotes (Ceph 18 does)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    data: bytes
    etag: str
    size: int
    """Bytes of the object: more than `data` has where the object is longer than it was to be read."""
    metadata: Mapping[str, str]


class Exchange:
    """The requests of one call for one key, counted."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self.bucket = bucket
        self.key = key
        self.requests: int = 0
        self.version: str | None = None
        """The version that the last write made, in a bucket that keeps versions."""
        self.sent: bool = False
        """Whether the last write began to be sent. False where it failed before: without credentials, say."""

    def read(self, limit: int) -> Stored | None:
        """Return the object, or None if there is none; of one longer than `limit` bytes no data is read."""
        response = self._absent_or("NoSuchKey", self.bucket.client.get_object)
        if response is None:
            return None
        with closing(response["Body"]) as body:
            size: int = response.get("ContentLength", 0)
            # Bounded even if the length is missing or a lie: whatever stands there is untrusted.
            data: bytes = b"" if size > limit else body.read(limit + 1)
        if len(data) < size <= limit:
            # The connection was closed early. botocore only notices where no more than the length is read.
            raise IncompleteReadError(actual_bytes=len(data), expected_bytes=size)
        return Stored(data, response.get("ETag", ""), max(size, len(data)), response.get("Metadata", {}))

    def head(self) -> Stored | None:
        """Return the object's metadata, or None if there is none."""
        response = self._absent_or("404", self.bucket.client.head_object)
        if response is None:
            return None
        return Stored(
            b"", response.get("ETag", ""), response.get("ContentLength", 0), response.get("Metadata", {})
        )

    def write(self, body: bytes | IO[bytes], etag: str | None, **extra: Any) -> str | None:
        """Write the object if it is still the one with this ETag, or, for None, if there is none.

        A file is sent whole, from its beginning.

        Returns:
            Its new ETag, or None where the answer had none: no S3 answers so, it is as good as no answer.

        Raises:
            NotEnforced: a weak ETag, which different contents may share (RFC 9110, section 8.8.1).
        """
        self.sent = False
        if etag is None:
            condition = {"IfNoneMatch": "*"}
        else:
            condition = {"IfMatch": strong(etag).strip('"') if self.bucket.bare else strong(etag)}
        if not isinstance(body, bytes):
            body.seek(0)
        response = self.send(self.bucket.client.put_object, Body=body, **condition, **extra)
        self.version = response.get("VersionId")
        return response.get("ETag") or None

    def send(self, call: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        """Make one request about the object, counted, and return boto3's response."""
        self.requests += 1
        _sending.set(False)
        try:
            response: dict[str, Any] = call(Bucket=self.bucket.name, Key=self.key, **parameters)
        except ClientError as error:
            self.requests += retries(error.response)
            raise
        finally:
            self.sent = _sending.get()
        self.requests += retries(response)
        return response

    def _absent_or(self, absent: str, call: Callable[..., Any]) -> dict[str, Any] | None:
        try:
            return self.send(call)
        except ClientError as error:
            # Only S3's own code says that the key is missing: a 404 without it comes from a proxy. But the
            # answer to HEAD has no body, and so no code: botocore puts "404" there, also where the bucket is
            # missing. The PUT that follows will tell.
            if code(error) == absent:
                return None
            if status(error) == 403:
                error.add_note(
                    f"reading {self.key!r} is forbidden, or it is missing and the credentials lack "
                    "s3:ListBucket (S3 then answers 403 instead of 404), so it is not taken as absent: "
                    "allow s3:GetObject, s3:PutObject and s3:ListBucket"
                )
            raise


def _note_sending(**_: object) -> None:
    _sending.set(True)


def endpoint(client: S3Client) -> str:
    """Return where a client sends to."""
    return str(client.meta.endpoint_url)


def strong(etag: str) -> str:
    """Return an ETag that can stand in a condition, exactly as the store sent it.

    Raises:
        NotEnforced: it is weak, missing, or no ETag.
    """
    if not 1 <= len(etag) <= 200 or not etag.isascii() or not etag.isprintable() or etag.startswith("W/"):
        raise NotEnforced(
            f"this store gives the ETag {etag[:80]!r}: it names no exact version, nothing can be "
            "swapped. Use a store whose ETags are strong"
        )
    return etag
