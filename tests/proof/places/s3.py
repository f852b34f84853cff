"""A fenced object of a bucket; and the same with a mark beside it, and without a step."""

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
from sinkfence_s3 import FencedBucket

MAGIC = 8
BODY = b"the report"
"""All puts have one content, as repetitions of a step must; the attempt goes into the content type."""


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
                report.put(BODY, token, step=self.step(diary), content_type=attempt)

        diary.answered(arm, *self.lost)
        diary.answered(put, *self.lost)

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
        self.ids[job, header["content_seq"]] = header["content_type"]
        effects = []
        for seq, _, _, generation, digest in header["ring"]:
            if digest is not None:
                attempt = self.ids.get((job, seq), f"unseen write {seq}")
                effects.append(Effect(generation, attempt.partition("/")[0], attempt))
        return effects


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
