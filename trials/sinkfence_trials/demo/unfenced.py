"""The same four effects with the checks off: there is a lease, and no destination that looks at it."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import requests

from sinkfence import Lease
from sinkfence.sinks import Bearer, Sink
from sinkfence_trials.demo.places import CHARGE, DOCUMENT, JOB, Places
from sinkfence_trials.servers.s3 import S3Server


class Unfenced:
    """One worker's ways to the database, the bucket, the service and the store, as they mostly are."""

    def __init__(self, places: Places, name: str) -> None:
        self._name = name
        self._places = places
        server = S3Server(**places.s3)
        self._client, self._bucket = server.client(), server.bucket
        self._session = requests.Session()
        self._session.trust_env = False

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Nothing to arm: no destination keeps a mark."""
        return ()

    @contextmanager
    def transaction(self, bearer: Bearer) -> Generator[psycopg.Connection]:
        """Open a transaction that commits."""
        with psycopg.connect(self._places.ledger, application_name=self._name) as conn:
            yield conn

    def read(self) -> bytes:
        """Return the document as it is; nothing where there is none."""
        try:
            return self._client.get_object(Bucket=self._bucket, Key=DOCUMENT)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            return b""

    def upload(self, body: bytes, bearer: Bearer) -> None:
        """Write the document over whatever is there."""
        self._client.put_object(Bucket=self._bucket, Key=DOCUMENT, Body=body, ContentType="text/plain")

    def charge(self, amount: int, bearer: Bearer) -> None:
        """Have the customer charged."""
        answer = self._session.post(
            self._places.service + CHARGE, json={"amount": amount, "sender": self._name}, timeout=60
        )
        answer.raise_for_status()

    def complete(self, lease: Lease, result: Any) -> None:
        """Record the result, by the job's id alone."""
        with psycopg.connect(self._places.leases) as conn:
            conn.execute(
                "UPDATE sinkfence_lease SET state = 'done', result = %s WHERE job_id = %s",
                (json.dumps(result), JOB),
            )

    def answer(self, effect: str, error: BaseException) -> str:
        """Return what was said, should something be refused after all."""
        return str(error)
