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

from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, IncompleteReadError
from botocore.parsers import ResponseParserError

from sinkfence.errors import NotEnforced

_NOT_HEARD: Final = frozenset({"RequestTimeout", "RequestTimeTooSkewed"})
"""Refusals of a request that came too slowly or was signed too long ago: signed anew it may pass."""

_sending: Final = ContextVar("sinkfence_s3 sending", default=False)
"""Whether the request that this thread makes has begun to be sent."""

S3Client = Any
"""What `boto3.client("s3")` returns, a class made at run time. Its retries and timeouts are the user's."""


@dataclass(slots=True)
class Etags:
    """The form of ETags in conditions that a store has shown to want."""

    bare: bool = False
    """Whether it wants them without their quotes (Ceph 18 does)."""
    either: bool = False
    """Whether it was seen to refuse one that is out of date in the other form, too.

    Only then may the other form be tried: what is no entity-tag to a store, it may ignore (RFC 9110 knows
    none without quotes), and a condition that is ignored is none.
    """


class Store:
    """One bucket, as one client reaches it."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        meta = getattr(client, "meta", None)
        if not hasattr(meta, "events"):
            # A resource has its client there.
            mend = "pass its .meta.client" if hasattr(meta, "client") else "make one by boto3.client('s3')"
            raise TypeError(f"client must be a boto3 S3 client, not {type(client).__name__}: {mend}")
        if not isinstance(bucket, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"bucket must be a str, its name, not {type(bucket).__name__}")
        if not bucket:
            raise ValueError("bucket must be the name of a bucket, and is empty")
        # First, as another's handler may answer in S3's place; and once for each client, whoever asks.
        client.meta.events.register_first("before-send.s3.PutObject", _note_sending, unique_id="sinkfence")
        self.client = client
        self.bucket = bucket
        self.etags: Etags = Etags()


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read."""

    data: bytes
    etag: str
    size: int
    """In bytes; larger than `data` where it was longer than the reader wanted."""
    metadata: Mapping[str, str]


class Exchange:
    """The requests of one call for one key, counted."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.requests: int = 0
        self.version: str | None = None
        """The version that the last write made, in a bucket that keeps versions."""
        self.sent: bool = False
        """Whether the last write began to be sent, or failed before: for want of credentials, say."""
        self._bare = False

    def read(self, limit: int) -> Stored | None:
        """Return the object, or None if there is none; longer than `limit` bytes isn't read at all."""
        response = self._absent_or("NoSuchKey", self.store.client.get_object)
        if response is None:
            return None
        with closing(response["Body"]) as body:
            size: int = response.get("ContentLength", 0)
            # Bounded even if the length is missing or a lie: whatever stands there is untrusted.
            data: bytes = b"" if size > limit else body.read(limit + 1)
        if len(data) < size <= limit:
            # A connection that was closed early; botocore tells only who asks for no more than the length.
            raise IncompleteReadError(actual_bytes=len(data), expected_bytes=size)
        return Stored(data, response.get("ETag", ""), max(size, len(data)), response.get("Metadata", {}))

    def head(self) -> Stored | None:
        """Return the object's metadata, or None if there is none."""
        response = self._absent_or("404", self.store.client.head_object)
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
            self._bare = self.store.etags.bare  # read once: another thread may change it
            condition = {"IfMatch": strong(etag).strip('"') if self._bare else strong(etag)}
        if not isinstance(body, bytes):
            body.seek(0)
        response = self.send(self.store.client.put_object, Body=body, **condition, **extra)
        self.version = response.get("VersionId")
        return response.get("ETag") or None

    def other_form(self) -> None:
        """Have ETags sent in the other form than the last one of this call, where that may be tried."""
        etags = self.store.etags
        if etags.either:
            etags.bare = not self._bare

    def send(self, call: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        """Make one request about the object, counted, and return boto3's response."""
        self.requests += 1
        _sending.set(False)
        try:
            response: dict[str, Any] = call(Bucket=self.store.bucket, Key=self.key, **parameters)
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
            # A 404 without S3's own code comes from something in between, which knows of no key. But HEAD
            # has no body, which would tell a missing key from a missing bucket, too: a PUT will.
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
    """Return where a client sends to, to be shown: without the user and password that a URL may hold."""
    url = urlsplit(str(client.meta.endpoint_url))
    return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


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


def code(error: ClientError) -> str:
    """Return the error code of S3, which stands in the body even where the status is 200."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status(error: ClientError) -> int:
    """Return the HTTP status; 0 where there was none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def retries(response: Mapping[str, Any]) -> int:
    """Return how often boto3 repeated the request by itself."""
    return int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def worth_repeating(error: Exception) -> bool:
    """Whether to read back and, if the state allows it, to send the same request again.

    S3 says that the condition did not hold (412; 409; 404 for If-Match on a missing key), or that it did not
    take the request in.
    """
    return isinstance(error, ClientError) and (
        status(error) in (409, 412) or code(error) == "NoSuchKey" or code(error) in _NOT_HEARD
    )


def settled(error: Exception) -> bool:
    """Whether this answer says by itself that nothing was written.

    Otherwise only reading back tells. A repetition by boto3 makes any answer doubtful: the first sending
    may have been applied, and its lost success then looks like a 412, or like credentials that expired. Nor
    is it an answer if the repetition itself failed: credentials could not be had again, from STS (whose
    errors look just like those of S3) or by other means.
    """
    if not isinstance(error, ClientError) or error.operation_name != "PutObject":
        return False
    return 300 <= status(error) < 500 and retries(error.response) == 0


def passing(error: Exception) -> bool:
    """Whether the same request may well succeed if it is sent again."""
    if not isinstance(error, ClientError):
        return no_answer(error)
    # An error in a 200 came after S3 had begun to answer: as good as a 500.
    return not 300 <= status(error) < 500 or status(error) in (409, 429) or code(error) in _NOT_HEARD


def no_answer(error: Exception) -> bool:
    """Whether the connection or the answer failed, so that the request may or may not have arrived."""
    return isinstance(error, HTTPClientError | ConnectionError | IncompleteReadError | ResponseParserError)
