"""A key that is written once: de-duplication, and no fence.

The first creator wins, whatever its generation. The object holds the raw bytes; its metadata say which
write made it, of which step, so that a repetition is told from a stranger.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from sinkfence.errors import IdempotencyMismatch
from sinkfence.tokens import check_text
from sinkfence_s3.delivery import deliver, read_back
from sinkfence_s3.objects import Written
from sinkfence_s3.store import Exchange

MAX_ONCE: Final = 64 * 1024 * 1024
"""Bytes: the body is held in memory and sent in one request."""
_WRITE: Final = "sinkfence-write"
_STEP: Final = "sinkfence-step"
_SHA256: Final = "sinkfence-sha256"


def put_once(exchange: Exchange, body: bytes, step: str) -> Written:
    """Create the object, or recognise that this very step has created it.

    Raises:
        IdempotencyMismatch: something else is there: another step's, other content, a register.
        OutcomeUnknown: sent, and its fate cannot be read.
    """
    metadata = {
        _WRITE: secrets.token_hex(16),
        _STEP: hashlib.sha256(check_text("step", step).encode()).hexdigest(),
        _SHA256: hashlib.sha256(body).hexdigest(),
    }

    def judge(etag: str | None, in_doubt: bool) -> Written | None:
        if etag is not None:
            return Written(1, None, etag, False, False, exchange.requests)
        # A 412 may answer boto3's repetition of a request whose success was lost: the write id tells.
        there = read_back(exchange.head, exchange.key, in_doubt)
        if there is None:
            return None
        mine = there.metadata.get(_WRITE) == metadata[_WRITE]
        if not mine and any(there.metadata.get(name) != metadata[name] for name in (_STEP, _SHA256)):
            raise IdempotencyMismatch(
                f"{exchange.key!r} exists, made by another step or with other content: it stays as it is"
            )
        return Written(1, None, there.etag, not mine, False, exchange.requests)

    return deliver(exchange, body, None, judge, Metadata=metadata)
