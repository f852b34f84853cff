"""A service's fence, for WSGI."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sinkfence.sinks import Gate
from sinkfence.tokens import Token
from sinkfence_http.door import passage_of
from sinkfence_http.verifiers import Verifier


class Fence:
    """What `wsgi.FencingMiddleware` enforces, and what a handler asks for its token.

    With `strict`, a success (2xx, or 3xx but 307 and 308) whose handler never admitted or committed nothing
    guarded becomes a 500 `not-guarded`: a handler that forgets the check is the largest practical hole.

    Raises:
        TypeError: the gate is an async one or none; there is no verifier.
    """

    def __init__(self, gate: Gate, verifier: Verifier, *, strict: bool = True) -> None:
        check_parts(gate, verifier, aio=False)
        self.gate = gate
        self.verifier = verifier
        self.strict = strict

    def admit(self, environ: Mapping[str, Any], job_id: str) -> Token:
        """Return the request's token, to be passed to `transaction`, if it is for this job.

        Compute the job_id from the validated parameters that the handler itself uses, not from the path.

        Raises:
            MissingToken: the request came in without one.
            JobMismatch: its token is for another job.
        """
        return passage_of(environ).admit(job_id)


def check_parts(gate: object, verifier: object, *, aio: bool) -> None:
    """Refuse what a Fence can't be made of, at construction."""
    announce = getattr(gate, "announce", None)
    if announce is None:
        raise TypeError(f"a Fence needs a gate, such as a PostgresSink, not {type(gate).__name__}")
    if inspect.iscoroutinefunction(announce) is not aio:
        raise TypeError(
            "sinkfence_http.aio.Fence needs an async gate, such as sinkfence_postgres.aio.PostgresSink"
            if aio
            else "sinkfence_http.Fence needs a sync gate; before an async one stands sinkfence_http.aio.Fence"
        )
    if not hasattr(verifier, "verify"):
        raise TypeError("a Fence needs a verifier: SignedTokens(keys, audience), or by name TrustedNetwork()")
