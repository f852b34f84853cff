"""An HTTP service as a worker uses it, and one of the user's."""

from __future__ import annotations

import json
from typing import Any, Final

import requests

from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.requests_adapter import FencedAdapter, HttpSink
from sinkfence_trials.torture.destinations import TIMEOUT, Seen, Write

ATTEMPT: Final = "Torture-Attempt"
"""The header field that says which attempt it is, and on which effect it builds."""


class Caller:
    """Calls a service behind its door."""

    durable: bool = True

    def __init__(self, url: str, timeout: float = TIMEOUT, *, fenced: bool = True) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout
        self.fenced: bool = fenced
        self._session = requests.Session()
        self._session.trust_env = False
        self._mounted: Token | None = None

    def arm(self, bearer: Bearer) -> None:
        HttpSink(self._session, self._url).arm(bearer)

    def read(self, token: Token) -> Seen:
        found = self._send("GET", token).json()
        return Seen(found["last"], found["count"])

    def write(self, token: Token, write: Write) -> str:
        return str(self._post(token, write).json()["applied"])

    def _post(self, token: Token, write: Write) -> requests.Response:
        # Whoever makes a step makes the same request, for its key stands for the request's content: what
        # tells one attempt from another is beside it.
        said = json.dumps({"id": write.id, "base": write.base.last})
        headers = {wire.IDEMPOTENCY_KEY: token.key(write.step), ATTEMPT: said}
        if not self.fenced:
            headers[wire.TOKEN] = wire.format_token(token)
        return self._send("POST", token, json={"step": write.step}, headers=headers)

    def _send(self, method: str, token: Token, **what: Any) -> requests.Response:
        if self.fenced and self._mounted != token:
            self._session.mount(self._url + "/", FencedAdapter(token))
            self._mounted = token
        reply = self._session.request(method, f"{self._url}/{token.job_id}", timeout=self._timeout, **what)
        reply.raise_for_status()
        return reply


class ForeignCaller(Caller):
    """Calls one of the user's, of which nothing is asked but to take a POST: nobody reads what it did."""

    def read(self, token: Token) -> Seen:
        return Seen(None, 0)

    def write(self, token: Token, write: Write) -> str:
        self._post(token, write)
        return write.id
