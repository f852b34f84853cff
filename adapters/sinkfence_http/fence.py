"""A service's fence, for WSGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkfence.sinks import Gate
from sinkfence.tokens import Token
from sinkfence_http.door import check_parts, passage_of
from sinkfence_http.verifiers import Verifier


class Fence:
    """What `wsgi.FencingMiddleware` enforces, and what a handler asks for its token.

    With `strict`, a success (2xx, or 3xx but 307 and 308) whose handler never admitted or committed nothing
    guarded becomes a 500 `not-guarded`: a handler that forgets the check is the largest practical hole.

    Raises:
        TypeError: the gate is an async one or none; there is no verifier.
        ValueError: replay or principal is given.
    """

    def __init__(
        self,
        gate: Gate,
        verifier: Verifier,
        *,
        replay: None = None,
        principal: None = None,
        strict: bool = True,
    ) -> None:
        check_parts(gate, verifier, replay, principal, aio=False)
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
