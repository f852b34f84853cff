"""S3 as a worker uses it: a fenced object for each job."""

from __future__ import annotations

import json
from typing import Any, Final

from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket
from sinkfence_trials.torture.destinations import TIMEOUT, Seen, Write
from sinkfence_trials.torture.places import Bucket

KEPT: Final = 64
"""How many effects an object shows: more than are made between two looks of the observer."""


class Documents:
    """An object for each job, which holds its own last effects."""

    durable: bool = True

    def __init__(self, bucket: Bucket, timeout: float = TIMEOUT, *, fenced: bool = True) -> None:
        self.fenced: bool = fenced
        client = bucket.client(
            connect_timeout=TIMEOUT, read_timeout=timeout, retries={"total_max_attempts": 1}
        )
        client.meta.events.register_last("before-call.s3", self._as_it_is_sent)
        self._bucket = FencedBucket(client, bucket.name, probe="never")  # a trial has tried it

    def _as_it_is_sent(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        # After `Expect: 100-continue` a client keeps its body back: what is held is to be the whole request.
        params["headers"].pop("Expect", None)
        if not self.fenced and model.name == "PutObject":
            for name in ("If-Match", "If-None-Match"):
                params["headers"].pop(name, None)

    def arm(self, bearer: Bearer) -> None:
        self._object(bearer.token).arm(bearer)

    def read(self, token: Token) -> Seen:
        try:
            found = json.load(self._object(token).get())
        except KeyError:
            return Seen(None, 0)
        return Seen(found["log"][-1]["id"], found["count"], found["log"])

    def write(self, token: Token, write: Write) -> str:
        entry = {
            "id": write.id,
            "generation": token.generation,
            "owner": token.owner,
            "base": write.base.last,
            "key": token.key(write.step),
        }
        body = {"count": write.base.count + 1, "log": [*write.base.log, entry][-KEPT:]}
        self._object(token).put(json.dumps(body).encode(), token, step=write.step)
        return write.id

    def _object(self, token: Token) -> Any:
        return self._bucket.object(token.job_id)
