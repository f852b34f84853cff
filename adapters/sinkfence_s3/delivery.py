"""One request under a condition, sent until it is known what became of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final, TypeVar

from botocore.exceptions import ClientError

from sinkfence.errors import OutcomeUnknown, SchemaMismatch
from sinkfence_s3.answers import no_answer, nothing_written, status, transient, worth_repeating
from sinkfence_s3.exchange import Exchange

SENDINGS: Final = 4
"""How often the very same request is sent while what is read shows that it wasn't applied yet."""
READINGS: Final = 3
"""How often a key is read before an error that passes counts."""

_CACHING_PROXY: Final = (
    "a proxy on the way may answer reads from its cache: have it pass each one on to the store"
)

T = TypeVar("T")


def deliver(
    exchange: Exchange,
    body: bytes | IO[bytes],
    etag: str | None,
    judge: Callable[[str | None, bool], T | None],
    **extra: Any,
) -> T:
    """Write under a condition, and again if need be, until `judge` knows the result.

    Sending again is safe however many copies of the request are still under way: all carry one condition,
    and whichever is applied first makes it false for the others.

    Args:
        exchange: where to.
        body: what to write.
        etag: the condition, as in `Exchange.write`.
        judge: called after each sending with the new ETag, or where there was no clear success with None, to
            read back; and with whether any sending had no clear answer. None from it is "not applied yet".
        extra: more parameters of PutObject.

    Raises:
        OutcomeUnknown: not applied yet, but a request that had no answer may still arrive.
        SchemaMismatch: the key cannot be created, although the store shows nothing there.
    """
    in_doubt = False
    error: Exception | None = None
    for turn in range(SENDINGS):
        new_etag, error = None, None
        try:
            new_etag = exchange.write(body, etag, **extra)
            in_doubt = in_doubt or new_etag is None
        except Exception as failure:
            unwritten = nothing_written(failure) or not (exchange.sent or no_answer(failure))
            if unwritten and not worth_repeating(failure) and not in_doubt:
                raise
            error = failure
            in_doubt = in_doubt or not unwritten
        result = judge(new_etag, in_doubt)
        if result is not None:
            return result
        pause(turn)
    if error is not None and not in_doubt:
        if isinstance(error, ClientError) and status(error) == 412:
            # S3 says that the condition failed, and by what it shows the condition holds.
            if etag is None:
                raise SchemaMismatch(
                    f"the store refuses to create {exchange.key!r} as if it existed, and shows nothing "
                    "there: some keep keys as paths, and have no object 'a' beside one 'a/b'. Choose another "
                    f"name. Or {_CACHING_PROXY}"
                ) from error
            error.add_note(
                f"the store refuses to replace {exchange.key!r}, and shows the very ETag that was asked for: "
                f"{_CACHING_PROXY}. Or it takes ETags only without their quotes, which the probe finds out"
            )
        raise error
    raise OutcomeUnknown(
        f"{exchange.key!r} was not written so far, but a request without an answer may still arrive: "
        "repeat it under the same step"
    ) from error


def persist(
    send: Callable[[], T],
    before: Callable[[], object] | None = None,
    times: int = SENDINGS,
    repeat_if: Callable[[Exception], bool] = transient,
) -> T:
    """Send what may arrive twice without harm; send it again after an error for which `repeat_if` is true.

    Raises:
        what `before` raises; the last error.
    """
    for turn in range(times):
        if before is not None:
            before()
        try:
            return send()
        except Exception as failure:
            if not repeat_if(failure) or turn + 1 == times:
                raise
        pause(turn)
    raise AssertionError("unreachable")


def remove(exchange: Exchange, upload_id: str | None = None) -> None:
    """Remove a data object, or an upload to one; what can't be removed now is left to `collect`."""
    client = exchange.bucket.client
    with suppress(Exception):
        if upload_id is None:
            persist(partial(exchange.send, client.delete_object))
        else:
            persist(partial(exchange.send, client.abort_multipart_upload, UploadId=upload_id))


def read_back(read: Callable[[], T], key: str, in_doubt: bool) -> T:
    """Read what stands at a key after a request failed, and again if reading fails in passing.

    Raises:
        OutcomeUnknown: the request may have been applied. Otherwise the reading's own error.
    """
    try:
        return persist(read, times=READINGS)
    except Exception as failure:
        if not in_doubt:
            raise
        raise OutcomeUnknown(
            f"{key!r} was sent, and cannot be read back: repeat it under the same step ({failure})"
        ) from failure


def pause(turn: int) -> None:
    """Wait a random time, at most 20 ms in the first turn, doubled each turn up to half a second."""
    time.sleep(random.uniform(0.0, min(0.02 * 2**turn, 0.5)))  # noqa: S311 - jitter
