"""An upload: one data object on its way, in parts, or by one request where no part is full.

Its key is fresh, and no register names it before all of it is there. So no condition is needed, and a
request whose answer was lost is simply sent again: it carries the same bytes, and a copy that arrives late
makes at worst an object or an upload that nothing names, which `collect` removes.

boto3's managed transfer is not used: it needs a file that can be rewound or keeps what it was given, counts
no requests, and cannot look at the lease between two parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from sinkfence.sinks import Bearer
from sinkfence_s3.answers import code
from sinkfence_s3.delivery import persist, remove
from sinkfence_s3.exchange import Exchange

PART: Final = 8 * 1024 * 1024
"""Bytes of a part, at least; S3 wants 5 MiB or more."""
PARTS: Final = 10_000
"""How many parts S3 takes (Amazon S3 user guide, "Amazon S3 multipart upload limits")."""
AT_ONCE: Final = 4
"""How many parts are under way at a time: with the one being filled, what a put keeps in memory."""


class _Part(NamedTuple):
    """A part that S3 has taken."""

    number: int
    etag: str
    size: int
    requests: int


class Upload:
    """One upload, by one thread: parts are sent, then it is finished or removed."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        bearer: Bearer,
        content_type: str | None,
        progress: Callable[[int], object],
    ) -> None:
        self.name = name
        self._exchange = exchange
        self._client = exchange.bucket.client
        self._bearer = bearer
        self._typed = {} if content_type is None else {"ContentType": content_type}
        self._progress = progress
        self._given_up = False
        self._may_exist = False
        """Whether a data object was made, or may have been."""
        self._size = 0
        self._id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[_Part]] = deque()
        self._parts: list[_Part] = []

    @property
    def requests(self) -> int:
        """How many requests were made for it."""
        return self._exchange.requests

    def part(self, body: bytes) -> None:
        """Send a part, in a thread; waits for an earlier one where too many are under way.

        Raises:
            LeaseLost; boto3's errors, an earlier part's too. ValueError: more than S3 takes in one object.
        """
        number = len(self._parts) + len(self._running) + 1
        if number > PARTS:
            raise ValueError(f"a stream of unknown length takes at most {PARTS * PART} bytes: put a file")
        if self._id is None:
            create = partial(self._exchange.send, self._client.create_multipart_upload, **self._typed)
            self._id = str(persist(create, self._check_wanted)["UploadId"])
            self._pool = ThreadPoolExecutor(AT_ONCE, "sinkfence-upload")
        elif len(self._running) == AT_ONCE:
            self._await_part()
        assert self._pool is not None
        self._size += len(body)
        self._running.append(self._pool.submit(self._send_part, self._id, number, body))

    def finish(self, body: bytes) -> None:
        """Send what is left, and make an object of it.

        Raises:
            as `part`.
        """
        if self._id is None:
            self._may_exist = True
            put = partial(self._exchange.send, self._client.put_object, Body=body, **self._typed)
            persist(put, self._check_wanted)
            self._progress(len(body))
            return
        self.part(body)
        while self._running:
            self._await_part()
        self._may_exist = True
        persist(partial(self._complete, self._id), self._check_wanted)
        self._id = None
        self._close()

    def remove(self) -> None:
        """Take back what was sent, as far as that goes now; only while no register can name it."""
        # The parts that are under way are waited for: one that arrives after the upload was aborted may stay
        # for ever. But none is sent again.
        self._given_up = True
        self._close()
        if self._id:
            remove(self._exchange, self._id)
        if self._may_exist:
            remove(self._exchange)

    def _send_part(self, upload_id: str, number: int, body: bytes) -> _Part:
        # One for each thread, as it counts without a lock.
        exchange = Exchange(self._exchange.bucket, self._exchange.key)

        def send() -> str:
            etag = exchange.send(
                self._client.upload_part, UploadId=upload_id, PartNumber=number, Body=body
            ).get("ETag")
            if not etag:
                raise ResponseParserError(f"S3 took part {number} of {exchange.key!r} without an ETag")
            return str(etag)

        etag = persist(send, self._check_wanted)
        return _Part(number, etag, len(body), exchange.requests)

    def _await_part(self) -> None:
        part = self._running.popleft().result()
        self._exchange.requests += part.requests
        self._parts.append(part)
        self._progress(part.size)

    def _complete(self, upload_id: str) -> None:
        parts = [{"PartNumber": part.number, "ETag": part.etag} for part in self._parts]
        complete = self._client.complete_multipart_upload
        try:
            self._exchange.send(complete, UploadId=upload_id, MultipartUpload={"Parts": parts})
        except ClientError as error:
            if code(error) != "NoSuchUpload":
                raise
            # The upload is gone: aborted, or completed by a request whose answer was lost. The key is ours
            # alone, so if an object is there, it is this one.
            stored = self._exchange.head()
            if stored is None or stored.size != self._size:
                raise

    def _check_wanted(self) -> None:
        if self._given_up:
            raise CancelledError
        _ = self._bearer.token  # LeaseLost, once its term is over: the rest need not be sent

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
