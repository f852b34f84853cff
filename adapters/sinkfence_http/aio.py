"""A service's fence, for ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkfence.sinks import AsyncGate
from sinkfence.tokens import Token
from sinkfence_http.door import check_parts, passage_of
from sinkfence_http.verifiers import Verifier


class Fence:
    """What `asgi.FencingMiddleware` enforces, and what a handler asks for its token.

    With `strict`, a 2xx whose handler never admitted or committed nothing guarded becomes a 500
    `not-guarded`: a handler that forgets the check is the largest practical hole.

    Raises:
        TypeError: the gate is a sync one or none; there is no verifier.
        ValueError: replay or principal is given.
    """

    def __init__(
        self,
        gate: AsyncGate,
        verifier: Verifier,
        *,
        replay: None = None,
        principal: None = None,
        strict: bool = True,
    ) -> None:
        check_parts(gate, verifier, replay, principal, aio=True)
        self.gate = gate
        self.verifier = verifier
        self.strict = strict

    async def admit(self, scope: Mapping[str, Any], job_id: str) -> Token:
        """Return the request's token, to be passed to `transaction`, if it is for this job.

        Compute the job_id from the validated parameters that the handler itself uses, not from the path.

        Raises:
            MissingToken: the request came in without one.
            JobMismatch: its token is for another job.
        """
        return passage_of(scope).admit(job_id)
