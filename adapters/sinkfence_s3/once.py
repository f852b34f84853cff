"""A key that is written once: de-duplication, and no fence.

The first creator wins, whatever its generation. The object holds the raw bytes; its metadata say which
write made it, of which step, so that a repetition is told from a stranger.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Callable
from typing import IO, Final

from sinkfence.errors import IdempotencyMismatch
from sinkfence.tokens import check_text
from sinkfence_s3.bodies import BodyLike, opened
from sinkfence_s3.delivery import deliver, read_back
from sinkfence_s3.exchange import Exchange
from sinkfence_s3.put import Written

MAX_ONCE: Final = 5 * 1024**3
"""Bytes: what S3 takes in one request. Multipart completion under a condition is not atomic everywhere."""
IN_MEMORY: Final = 8 * 1024 * 1024
"""Bytes of a file or stream that are held in memory; what is longer is kept in a temporary file meanwhile."""
_WRITE: Final = "sinkfence-write"
_STEP: Final = "sinkfence-step"
_SHA256: Final = "sinkfence-sha256"


def put_once(exchange: Exchange, body: BodyLike, step: str, ensure_enforced: Callable[[], None]) -> Written:
    """Create the object, or recognise that this very step has created it.

    Raises as `FencedBucket.put_once`.
    """
    step = check_text("step", step)
    # A copy is sent. The digest travels before the bytes, so nobody may change them once it is taken; and the
    # bytes of a stream may have to be sent again.
    with opened(body) as source, tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
        digest, size = hashlib.sha256(), 0
        for piece in source.pieces:
            size += len(piece)
            if size > MAX_ONCE:
                raise ValueError(f"this body has more than {MAX_ONCE} bytes (5 GiB), the most that fits here")
            digest.update(piece)
            copy.write(piece)
        ensure_enforced()
        return _create(exchange, copy, step, digest.hexdigest())


def _create(exchange: Exchange, body: IO[bytes], step: str, sha256: str) -> Written:
    metadata = {
        _WRITE: secrets.token_hex(16),
        _STEP: hashlib.sha256(step.encode()).hexdigest(),
        _SHA256: sha256,
    }

    def judge(etag: str | None, in_doubt: bool) -> Written | None:
        if etag is not None:
            return Written(1, None, etag, False, False, exchange.requests)
        # A 412 may answer boto3's repetition of a request whose success was lost: the write id tells.
        existing = read_back(exchange.head, exchange.key, in_doubt)
        if existing is None:
            return None
        mine = existing.metadata.get(_WRITE) == metadata[_WRITE]
        if not mine and any(existing.metadata.get(name) != metadata[name] for name in (_STEP, _SHA256)):
            raise IdempotencyMismatch(
                f"{exchange.key!r} exists, made by another step or with other content: it stays as it is"
            )
        return Written(1, None, existing.etag, not mine, False, exchange.requests)

    return deliver(exchange, body, None, judge, Metadata=metadata)
