"""An object in a bucket, whose writing can be held back inside the client."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ConnectionClosedError

from mutants.scenes import Effect, Ground, Scene
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

NAME = "report"


class Desk:
    """One object, with two clients that reach it."""

    def __init__(self, ground: Ground) -> None:
        self.clients, self.bucket, self.key = ground.s3, ground.bucket, ground.prefix + NAME
        self.prefix = ground.prefix
        self.written: dict[bytes, tuple[Token, str]] = {}
        self.last: tuple[bytes, int] | None = None
        self.scene = Scene(self.truth)

    def object(self, client: int) -> Any:
        return FencedBucket(self.clients[client], self.bucket, prefix=self.prefix, probe="never").object(NAME)

    def body(self, token: Token, attempt: str, text: bytes = b"") -> bytes:
        """What this attempt puts."""
        body = text or attempt.encode()
        self.written[body] = token, attempt
        return body

    def truth(self) -> list[Effect]:
        """What stands there, read without the library's reader, if it is another put's than before."""
        client = self.clients[1]
        try:
            frame = client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return []
        end = 12 + int.from_bytes(frame[8:12], "big")
        header = json.loads(frame[12:end])
        if header["content"] == "none":
            # No put can do that.
            gone, self.last = self.last is not None, None
            return [Effect(header["generation"], header["owner"], "nothing")] if gone else []
        if self.last == (frame[end:], header["content_seq"]):
            return []
        self.last = frame[end:], header["content_seq"]
        token, attempt = self.written[frame[end:]]
        return [Effect(token.generation, token.owner, attempt, header["content_seq"])]

    def first_tenure(self, generation: int = 1) -> tuple[Token, Any]:
        token, report = self.scene.issued(generation, "A"), self.object(0)
        with self.scene.arming(token):
            report.arm(token)
        with self.scene.rightful(token) as attempt:
            report.put(self.body(token, attempt), token)
        return token, report

    @contextmanager
    def sending(self, act: Callable[[Any], None]) -> Generator[None]:
        """Have the first client do this once, when its next PutObject is made and not yet sent."""
        acts = [act]

        def before_send(request: Any, **_: object) -> None:
            if acts:
                acts.pop()(request)

        events = self.clients[0].meta.events
        events.register("before-send.s3.PutObject", before_send)
        try:
            yield
        finally:
            events.unregister("before-send.s3.PutObject", before_send)


def lost(request: Any) -> None:
    """The connection is gone, and so is the answer."""
    raise ConnectionClosedError(endpoint_url=request.url)
