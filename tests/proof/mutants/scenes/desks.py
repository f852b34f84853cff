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
LONG = 1100 * 1024
"""Bytes: more than a register holds."""
PART = 8 * 1024 * 1024
"""Bytes: as many as are sent at a time."""
BESIDE = ".d/"
"""In the key of what lies beside a register."""


class Desk:
    """One object, with two clients that reach it."""

    def __init__(self, ground: Ground) -> None:
        self.clients, self.bucket, self.key = ground.s3, ground.bucket, ground.prefix + NAME
        self.prefix = ground.prefix
        self.written: dict[bytes, tuple[Token, str]] = {}
        self.last: tuple[bytes, int] | None = None
        self.scene = Scene(self.truth)

    def object(self, client: int) -> Any:
        return self.fenced(client).object(NAME)

    def fenced(self, client: int) -> Any:
        return FencedBucket(self.clients[client], self.bucket, prefix=self.prefix, probe="never")

    def body(self, token: Token, attempt: str, text: bytes = b"") -> bytes:
        """What this attempt puts."""
        body = text or attempt.encode()
        self.written[body] = token, attempt
        return body

    def long(self, token: Token, attempt: str) -> bytes:
        """What this attempt puts, too long for a register."""
        return self.body(token, attempt, attempt.encode().ljust(LONG))

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
        content = frame[end:] if header["content"] == "inline" else self.beside(header["data"])
        if self.last == (content, header["content_seq"]):
            return []
        self.last = content, header["content_seq"]
        if content not in self.written:  # nobody has put that
            return [Effect(header["generation"], header["owner"], "nothing")]
        token, attempt = self.written[content]
        return [Effect(token.generation, token.owner, attempt, header["content_seq"])]

    def beside(self, name: str) -> bytes:
        """What the register names, if it is there."""
        client = self.clients[1]
        try:
            found = client.get_object(Bucket=self.bucket, Key=self.key + BESIDE + name)
        except client.exceptions.NoSuchKey:
            return b""
        return bytes(found["Body"].read())

    def first_tenure(self, generation: int = 1) -> tuple[Token, Any]:
        token, report = self.scene.issued(generation, "A"), self.object(0)
        with self.scene.arming(token):
            report.arm(token)
        with self.scene.rightful(token) as attempt:
            report.put(self.body(token, attempt), token)
        return token, report

    @contextmanager
    def sending(self, act: Callable[[Any], None], *, beside: bool = False) -> Generator[None]:
        """Have the first client do this once, when its next PutObject, of a register or of what is to lie
        beside one, is made and not yet sent."""
        acts = [act]

        def before_send(request: Any, **_: object) -> None:
            if acts and (BESIDE in request.url) == beside:
                acts.pop()(request)

        events = self.clients[0].meta.events
        events.register("before-send.s3.PutObject", before_send)
        try:
            yield
        finally:
            events.unregister("before-send.s3.PutObject", before_send)

    @contextmanager
    def silent(self, operation: str = "GetObject") -> Generator[None]:
        """Have the first client hear nothing of this: of what it reads, unless another is named."""

        def before_send(request: Any, **_: object) -> None:
            lost(request)

        events = self.clients[0].meta.events
        events.register(f"before-send.s3.{operation}", before_send)
        try:
            yield
        finally:
            events.unregister(f"before-send.s3.{operation}", before_send)


def lost(request: Any) -> None:
    """The connection is gone, and so is the answer."""
    raise ConnectionClosedError(endpoint_url=request.url)
