"""A worker's four effects with sinkfence: each destination checks the token in its own atomic step."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import requests

from sinkfence import Lease
from sinkfence.sinks import Bearer, Sink
from sinkfence_http import TokenSigner
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_postgres import PostgresSink, transaction
from sinkfence_s3 import FencedBucket
from sinkfence_trials.demo.places import AUDIENCE, CHARGE, DOCUMENT, ISSUER, KEY_ID, STEP, Places
from sinkfence_trials.servers.s3 import S3Server


class Fenced:
    """One worker's ways to the database, the bucket, the service and the store, with the checks on."""

    def __init__(self, places: Places, name: str) -> None:
        self._name = name
        self._ledger = places.ledger
        server = S3Server(**places.s3)
        client = server.client()
        client.meta.events.register("after-call.s3.PutObject", self._hear_s3)
        self._s3_said = ""
        self._document = FencedBucket(client, server.bucket).object(DOCUMENT)
        self._service = places.service
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, no .netrc: the service is on this machine
        self._sign = TokenSigner(
            places.signing_key, kid=KEY_ID, alg="EdDSA", issuer=ISSUER, audience=AUDIENCE
        )

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """What is armed before the work begins."""
        service = HttpSink(self._session, self._service, sign=self._sign)
        return PostgresSink(self._ledger), self._document, service

    @contextmanager
    def transaction(self, bearer: Bearer) -> Generator[psycopg.Connection]:
        """Open a transaction whose COMMIT PostgreSQL refuses, once it has seen a newer generation."""
        with psycopg.connect(self._ledger, application_name=self._name) as conn, transaction(conn, bearer):
            yield conn

    def read(self) -> bytes:
        """Return the document as it is; nothing where there is none."""
        try:
            return self._document.get().read()
        except KeyError:
            return b""

    def upload(self, body: bytes, bearer: Bearer) -> None:
        """Write the document; S3 refuses the PUT, once a newer generation has written or armed the object."""
        self._document.put(body, bearer, step=STEP, content_type="text/plain")

    def charge(self, amount: int, bearer: Bearer) -> None:
        """Have the customer charged; the service refuses, once it has seen a newer generation."""
        self._session.mount(self._service + "/", FencedAdapter(bearer, sign=self._sign))
        answer = self._session.post(
            self._service + CHARGE,
            json={"amount": amount, "sender": self._name},
            headers={"Idempotency-Key": bearer.token.key(STEP)},
            timeout=60,
        )
        answer.raise_for_status()

    def complete(self, lease: Lease, result: Any) -> None:
        """Record the result; the store refuses, once the job has a newer owner."""
        lease.complete(result)

    def answer(self, effect: str, error: BaseException) -> str:
        """Return what the destination itself said, to show that it was not this side which gave up."""
        if effect == "upload":
            return self._s3_said
        if effect == "transaction":
            return f"SQLSTATE {getattr(error.__cause__, 'sqlstate', None)}"
        return ""  # of the service's answer the network tells

    def _hear_s3(self, http_response: Any, **_: Any) -> None:
        self._s3_said = f"status {http_response.status_code}"
