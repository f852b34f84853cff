"""A fenced object of a bucket, its content inside or beside it; the same by hand, and without a step."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError
from sweep import Diary, Effect

from places.addresses import upstream_of
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket, FencedObject

MAGIC = 8
BODY = b"the report"
"""All puts have one content, as repetitions of a step must; the attempt goes into the content type."""
LONG = 1100 * 1024
"""Bytes: more than a register holds."""


@dataclass
class Bucket:
    """The truth is in the register's ring, found in the bucket's bytes without our reader."""

    endpoint: str
    keys: dict[str, str]
    bucket: str
    prefix: str
    observer: Any
    """A client that reads the truth, and that those use who are not put through the proxy."""
    ids: dict[tuple[str, int], str] = field(default_factory=dict)
    """Which attempt made which write of a job, as the observer has seen."""

    lost = (ConnectionClosedError,)
    """A reading that comes before anything was sent passes the client's error on."""
    content = BODY

    @property
    def upstream(self) -> tuple[str, int]:
        return upstream_of(self.endpoint)

    def greet(self, address: tuple[str, int]) -> None:
        pass

    def before(self, token: Token, diary: Diary) -> None:
        diary.issued(token)

    def tenure(self, address: tuple[str, int], token: Token, diary: Diary) -> None:
        if address == self.upstream:
            self.work(self.observer, token, diary)  # to make a client takes longer than a tenure
            return
        # One attempt of the client's own: what it repeats is by the adapter's decision.
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=60)
        url = f"http://{address[0]}:{address[1]}"
        with closing(boto3.client("s3", endpoint_url=url, config=config, **self.keys)) as client:
            self.work(client, token, diary)

    def work(self, client: Any, token: Token, diary: Diary) -> None:
        report = FencedBucket(client, self.bucket, prefix=self.prefix, probe="never").object(token.job_id)

        def arm() -> None:
            with diary.arming(token):
                report.arm(token)

        def put() -> None:
            with diary.writing(token) as attempt:
                self.put(report, token, self.step(diary), attempt)

        diary.answered(arm, *self.lost)
        diary.answered(put, *self.lost)

    def put(self, report: FencedObject, token: Token, step: str | None, attempt: str) -> None:
        report.put(self.content, token, step=step, content_type=attempt)

    def step(self, diary: Diary) -> str | None:
        return diary.step

    def truth(self, job: str) -> list[Effect]:
        key = self.prefix + job
        try:
            frame = self.observer.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except self.observer.exceptions.NoSuchKey:
            return []
        start = MAGIC + 4
        header = json.loads(frame[start : start + int.from_bytes(frame[MAGIC:start], "big")])
        self.ids[job, header["content_seq"]] = self.attempt(key, header)
        effects = []
        for seq, _, _, generation, digest in header["ring"]:
            if digest is not None:
                attempt = self.ids.get((job, seq), f"unseen write {seq}")
                effects.append(Effect(generation, attempt.partition("/")[0], attempt))
        return effects

    def attempt(self, key: str, header: dict[str, Any]) -> str:
        """Which attempt has put the content that stands there."""
        return str(header["content_type"])


class Long(Bucket):
    """The content is an object beside the register, sent before it is named."""

    content = BODY.ljust(LONG)


class Opened(Bucket):
    """The content is written to a file, which appears when it is closed; each attempt's says whose it is."""

    def put(self, report: FencedObject, token: Token, step: str | None, attempt: str) -> None:
        with report.open(token, step=step) as file:
            file.write(attempt.encode().ljust(LONG))

    def attempt(self, key: str, header: dict[str, Any]) -> str:
        if header["content"] == "none":
            return ""
        data = self.observer.get_object(Bucket=self.bucket, Key=f"{key}.d/{header['data']}")
        return str(data["Body"].read().decode().strip())


class LookThenPut(Bucket):
    """By hand: the mark is an object of its own, looked at before the content is put beside it."""

    def work(self, client: Any, token: Token, diary: Diary) -> None:
        name = token.job_id + ".mark"
        mark = FencedBucket(client, self.bucket, prefix=self.prefix, probe="never").object(name)
        with diary.arming(token):
            mark.arm(token)
        with diary.writing(token) as attempt:
            mark.arm(token)  # which, being armed, only looks
            key = self.prefix + token.job_id
            told = {"generation": str(token.generation), "owner": token.owner, "id": attempt}
            client.put_object(Bucket=self.bucket, Key=key, Body=BODY, Metadata=told)

    def truth(self, job: str) -> list[Effect]:
        try:
            told = self.observer.head_object(Bucket=self.bucket, Key=self.prefix + job)["Metadata"]
        except self.observer.exceptions.ClientError:
            return []
        return [Effect(int(told["generation"]), told["owner"], told["id"])]


class WithoutStep(Bucket):
    """A put by the successor is not told to be the step that was done already."""

    def step(self, diary: Diary) -> None:
        return None
