"""Where the sweep takes owners: each real destination through its real client, and each without its check."""

from places.direct import Direct, direct
from places.http import Behind, DoorAlone, Service
from places.modes import Bound, Locked, Once, Protected, Row
from places.postgres import (
    Alchemy,
    Asynchronous,
    Postgres,
    SelectCompareWrite,
    TakenForFailure,
    TakenForSuccess,
    WithoutKey,
)
from places.s3 import Bucket, Long, LookThenPut, Opened, WithoutStep
from places.services import Open, asgi_service, unguarded, without_key, wsgi_service
from places.store import CompletedByAnybody, Kept, NotDoneTwice, ReleasedByAnybody, Store

__all__ = [
    "Alchemy",
    "Asynchronous",
    "Behind",
    "Bound",
    "Bucket",
    "CompletedByAnybody",
    "Direct",
    "DoorAlone",
    "Kept",
    "Locked",
    "Long",
    "LookThenPut",
    "NotDoneTwice",
    "Once",
    "Open",
    "Opened",
    "Postgres",
    "Protected",
    "ReleasedByAnybody",
    "Row",
    "SelectCompareWrite",
    "Service",
    "Store",
    "TakenForFailure",
    "TakenForSuccess",
    "WithoutKey",
    "WithoutStep",
    "asgi_service",
    "direct",
    "unguarded",
    "without_key",
    "wsgi_service",
]
