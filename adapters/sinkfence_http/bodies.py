"""A WSGI request's body, looked at before its handler gets it."""

from __future__ import annotations

import hashlib
import io
from typing import Any

from sinkfence_http.answers import DIGEST_REQUIRED, INCOMPLETE, Refused
from sinkfence_http.records import content_digest


def read(environ: dict[str, Any], limit: int) -> bytes:
    """Return the SHA-256 of the body, computed or, above the limit, as declared; the handler can read it all.

    Raises:
        Refused: it ended early; or it declares none, and is above the limit, or of a length that isn't told.
    """
    length: str = environ.get("CONTENT_LENGTH") or ""
    chunked = not length and bool(environ.get("wsgi.input_terminated"))
    # Longer ones int() would refuse, and no body has as many bytes.
    if length and not (length.isdecimal() and len(length) <= 18):
        raise Refused(INCOMPLETE)
    expected = None if chunked else int(length or 0)
    untold = not length and not chunked and _may_have_body(environ)
    if untold or (expected is not None and expected > limit):
        return _declared(environ)
    source = environ["wsgi.input"]
    body = _take(source, limit + 1 if expected is None else expected)
    if expected is not None and len(body) < expected:
        raise Refused(INCOMPLETE)
    if len(body) > limit:
        digest = _declared(environ)
        environ["wsgi.input"] = io.BufferedReader(_Joined(body, source))
        return digest
    environ["wsgi.input"] = io.BytesIO(body)
    if chunked:
        environ["CONTENT_LENGTH"] = str(len(body))
    return hashlib.sha256(body).digest()


def _may_have_body(environ: dict[str, Any]) -> bool:
    """Whether a request without a length may have a body, as hypercorn and a2wsgi pass them to WSGI.

    Taken for empty, it would be lost, and another one under the same key be given its answer. In HTTP/2 a
    body needs no length (RFC 9113, section 8.1.1).
    """
    version: str = environ.get("SERVER_PROTOCOL", "HTTP/1.1")
    return "HTTP_TRANSFER_ENCODING" in environ or not version.startswith("HTTP/1.")


def _declared(environ: dict[str, Any]) -> bytes:
    digest = content_digest([environ.get("HTTP_CONTENT_DIGEST", "")])
    if digest is None:
        raise Refused(DIGEST_REQUIRED)
    return digest


def _take(source: Any, size: int) -> bytes:
    parts: list[bytes] = []
    try:
        while size > 0 and (part := source.read(size)):
            parts.append(part)
            size -= len(part)
    except Exception as error:  # each server has errors of its own for a client that has gone
        raise Refused(INCOMPLETE) from error
    return b"".join(parts)


class _Joined(io.RawIOBase):
    """What was read already, then the rest of a stream that ends by itself."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first = io.BytesIO(first)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._first.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
