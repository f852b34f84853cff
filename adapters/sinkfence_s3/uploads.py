"""An upload: the content of one put on its way, held back while it is small, else sent to a data object.

A data object's key is fresh for each upload, and no register names it before all of it is there. So no
condition is needed, and a request whose answer was lost is simply sent again: it carries the same bytes, and
a copy that arrives late makes at worst an object or an upload that nothing names, which `collect` removes.

boto3's managed transfer is not used: it needs a file that can be rewound or keeps what it was given, counts
no requests, and cannot look at the lease between two parts.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Self

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from sinkfence.sinks import Bearer
from sinkfence_s3.bodies import octets
from sinkfence_s3.data import Data, folder, fresh_name
from sinkfence_s3.delivery import persist, remove
from sinkfence_s3.register import MAX_INLINE, Content
from sinkfence_s3.store import Exchange, Store, code

PART: Final = 8 * 1024 * 1024
"""Bytes of a part, at least; S3 wants 5 MiB or more."""
PARTS: Final = 10_000
"""How many parts S3 takes (Amazon S3 user guide, "Amazon S3 multipart upload limits")."""
AT_ONCE: Final = 4
"""How many parts are under way at a time: with the one being filled, what an upload keeps in memory."""


class _Part(NamedTuple):
    """A part that S3 has taken."""

    number: int
    etag: str
    size: int
    requests: int


class Upload:
    """One upload, filled by one thread: pieces are written, then it is finished or removed."""

    def __init__(
        self,
        store: Store,
        key: str,
        bearer: Bearer,
        *,
        content_type: str | None,
        length: int | None,
        progress: Callable[[int], object] | None,
        admit: Callable[[], bool],
    ) -> None:
        self.size: int = 0
        """Bytes written so far."""
        self._name = fresh_name(bearer.token.generation)
        self._exchange = Exchange(store, folder(key) + self._name)
        self._bearer = bearer
        self._content_type = content_type
        self._typed = {} if content_type is None else {"ContentType": content_type}
        self._tell: Callable[[int], object] = (lambda _: None) if progress is None else progress
        self._admit = admit
        self._admitted: bool | None = None
        self._part_size = max(PART, -(-(length or 0) // PARTS))
        self._hash = hashlib.sha256()
        self._finished = False
        self._given_up = False
        self.broken: bool = False
        """Whether a piece was taken in part only: its writer may have caught the error, and go on."""
        self._sent = False
        """Whether there is a data object, or may be."""
        self._held: list[bytes] = []
        self._room = self._part_size
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[_Part]] = deque()
        self._parts: list[_Part] = []

    @property
    def requests(self) -> int:
        """How many requests were made for it."""
        return self._exchange.requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._finished:
            self.remove()

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Take a piece; whenever a part is full and more comes, it is sent.

        Raises:
            what `admit` raises, before anything is sent; LeaseLost; boto3's errors.
            ValueError: more than S3 takes in one object, or an earlier write failed.
        """
        self._check_whole()
        self.broken = True
        rest = octets(piece)
        while len(rest):
            if not self._room:
                self._send_part()
            if isinstance(rest, bytes) and len(rest) <= self._room:
                taken, rest = rest, b""
            else:
                # A copy: whoever wrote it may go on to use its buffer for something else.
                view = memoryview(rest)
                taken, rest = bytes(view[: self._room]), view[self._room :]
            self._hash.update(taken)
            self._held.append(taken)
            self._room -= len(taken)
            self.size += len(taken)
        self.broken = False

    def finish(self) -> Content:
        """Send what is left, and return the content: bytes if it is small, else the data object's name.

        Where `admit` has said that the content need not be sent, it names an object that isn't there.

        Raises:
            as `write`.
        """
        self._check_whole()
        if self.size <= MAX_INLINE:
            body = self._take()
            self._tell(self.size)  # before the register is sent: its error must not hide a success
            return self._content(body)
        if self._parts or self._running or self._upload_id or not self._may_send():
            self._send_part()
            while self._running:
                self._settle_part()
            if self._upload_id:
                self._complete(self._upload_id)
        else:
            self._put()
        self._close()
        self._finished = True
        return self._content(Data(self._name, self.size))

    def remove(self) -> None:
        """Take back what was sent, as far as that goes now; only while no register can name it."""
        # First the parts that are under way: one that arrives after the upload was aborted may stay. But none
        # is sent again.
        self._given_up = True
        self._close()
        if self._upload_id:
            remove(self._exchange, self._upload_id)
        if self._sent:
            remove(self._exchange)

    def _check_whole(self) -> None:
        if self.broken:
            raise ValueError("an earlier write of this content failed, what is here has gaps: put it again")

    def _may_send(self) -> bool:
        if self._admitted is None:
            self._admitted = self._admit()
        return self._admitted

    def _put(self) -> None:
        body = self._take()
        self._sent = True
        client, extra = self._exchange.store.client, self._typed
        persist(partial(self._exchange.send, client.put_object, Body=body, **extra), self._look)
        self._tell(len(body))

    def _send_part(self) -> None:
        if not self._may_send():
            self._tell(len(self._take()))
            return
        number = len(self._parts) + len(self._running) + 1
        if number > PARTS:
            raise ValueError(
                f"a stream of unknown length takes at most {PARTS * self._part_size} bytes: put a file"
            )
        if self._upload_id is None:
            client, extra = self._exchange.store.client, self._typed
            create = partial(self._exchange.send, client.create_multipart_upload, **extra)
            self._upload_id = str(persist(create, self._look)["UploadId"])
            self._pool = ThreadPoolExecutor(AT_ONCE, "sinkfence-upload")
        elif len(self._running) == AT_ONCE:
            self._settle_part()
        assert self._pool is not None
        self._running.append(self._pool.submit(self._part, self._upload_id, number, self._take()))

    def _part(self, upload_id: str, number: int, body: bytes) -> _Part:
        """Send a part, in a thread of the pool."""
        exchange = Exchange(self._exchange.store, self._exchange.key)
        upload_part = exchange.store.client.upload_part

        def send() -> str:
            etag = exchange.send(upload_part, UploadId=upload_id, PartNumber=number, Body=body).get("ETag")
            if not etag:
                raise ResponseParserError(f"S3 took part {number} of {exchange.key!r} without an ETag")
            return str(etag)

        etag = persist(send, self._look)
        return _Part(number, etag, len(body), exchange.requests)

    def _settle_part(self) -> None:
        part = self._running.popleft().result()
        self._exchange.requests += part.requests
        self._parts.append(part)
        self._tell(part.size)

    def _complete(self, upload_id: str) -> None:
        self._sent = True
        complete = self._exchange.store.client.complete_multipart_upload
        parts = [{"PartNumber": part.number, "ETag": part.etag} for part in self._parts]

        def send() -> None:
            try:
                self._exchange.send(complete, UploadId=upload_id, MultipartUpload={"Parts": parts})
            except ClientError as error:
                if code(error) != "NoSuchUpload":
                    raise
                # The upload is gone: aborted, or completed by a request whose answer was lost. The key is
                # ours alone, so if there is an object, it is this one.
                there = self._exchange.head()
                if there is None or there.size != self.size:
                    raise

        persist(send, self._look)
        self._upload_id = None

    def _look(self) -> None:
        if self._given_up:
            raise CancelledError
        _ = self._bearer.token  # LeaseLost, once its term is over: the rest need not be sent

    def _take(self) -> bytes:
        body = b"".join(self._held)
        self._held.clear()
        self._room = self._part_size
        return body

    def _content(self, body: bytes | Data) -> Content:
        return Content(body, self._content_type, self._hash.hexdigest(), 0)

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
