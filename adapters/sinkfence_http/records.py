"""What is remembered of a request and its answer, so that its repetition gets the same one; pure."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sinkfence_http import wire

KEPT: Final = frozenset(
    {
        *("cache-control", "content-disposition", "content-digest", "content-encoding", "content-language"),
        *("content-location", "content-type", "etag", "last-modified", "link", "location", "repr-digest"),
        *("retry-after", "vary"),
    }
)
"""The headers that are kept. Never Set-Cookie, Date, or what belongs to one connection."""

TRANSIENT: Final = frozenset({408, 425, 429})
"""Statuses by which a handler asks for a repetition, and says that it did nothing: no such answer is kept."""

_ELSEWHERE: Final = frozenset(
    {
        *("x-accel-redirect", "x-lighttpd-send-file", "x-litespeed-location", "x-reproxy-url", "x-sendfile"),
        "x-sendfile2",
    }
)
"""Headers by which a proxy sends a file in the body's place: the door doesn't see it, and can't keep it."""

_SHA256: Final = re.compile(r"(?:^|,) *sha-256=:([A-Za-z0-9+/]{43}=):(?:;[^,]*)? *(?=,|$)")


def identity(*parts: str | bytes) -> str:
    """Return a hash that is the same for the same parts in the same order, and for nothing else."""
    # Each with its length before it: ("ab", "c") and ("a", "bc") are two.
    data = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in data)).hexdigest()


def content_digest(values: Sequence[str]) -> bytes | None:
    """Return the SHA-256 that a `Content-Digest` declares (RFC 9530), None if it declares none, or two."""
    digests = _SHA256.findall(", ".join(values))
    return base64.b64decode(digests[0]) if len(digests) == 1 else None


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer of the service, as it is given once more."""

    status: int
    pairs: tuple[tuple[str, str], ...]
    body: bytes | None
    """None: it was longer than what is kept."""

    @classmethod
    def read(cls, text: str) -> Kept:
        """Read what `Recording.kept` has written."""
        status, pairs, body = json.loads(text)
        content = None if body is None else base64.b64decode(body)
        return cls(status, tuple((name, value) for name, value in pairs), content)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers, in their order, with the mark that this is a repetition."""
        own = [(wire.STATUS, wire.format_status(wire.Status("accepted", replayed=True)))]
        if self.status not in (204, 304):  # RFC 9110, section 8.6
            own.append(("Content-Length", str(len(self.body or b""))))
        return [*self.pairs, *own]


class Recording:
    """The answer to one request, kept while it goes out."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self.status: int | None = None
        self._pairs: list[tuple[str, str]] = []
        self._length: int | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self._caller_left = False

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Note the head of the answer."""
        self.status = status
        head: dict[str, str] = {}
        for name, value in headers:
            head.setdefault(name.lower(), value)
            if name.lower() in KEPT:
                self._pairs.append((name, value))
        length = head.get("content-length", "").strip()
        if status in (204, 304):
            self._length = 0  # whatever the head says
        elif _ELSEWHERE & head.keys():
            self._length = -1  # which it never has
        elif length.isdecimal() and "transfer-encoding" not in head:  # RFC 9112, section 6.3
            self._length = int(length)

    def add(self, data: bytes | memoryview) -> None:
        """Note a part of the body."""
        data = bytes(data)  # a copy of a view: its buffer may be filled again, with the next part
        self._size += len(data)
        if self._size <= self._max_body:
            self._parts.append(data)
        else:
            self._parts.clear()  # an endless answer must not fill the memory

    def end(self) -> None:
        """Note that no more of the body comes: it was cut off, perhaps, where its caller had left before."""
        self._ended = not self._caller_left

    def caller_left(self) -> None:
        """Note that the application was told so, and may stop in the middle of its answer."""
        self._caller_left = True

    @property
    def whole(self) -> bool:
        """Whether all of the declared length is there, or it has none and has ended.

        One that ends short of it, or goes beyond it, is a broken one to its caller.
        """
        return self._ended if self._length is None else self._size == self._length

    def kept(self) -> str | None:
        """Return the answer as text, None if it is not to be kept."""
        if self.status is None or not self.whole or self.status >= 500 or self.status in TRANSIENT:
            return None
        fits = self._size <= self._max_body
        body = base64.b64encode(b"".join(self._parts)).decode() if fits else None
        return json.dumps([self.status, self._pairs, body])
