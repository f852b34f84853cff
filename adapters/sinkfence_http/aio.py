"""A service's fence, for ASGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkfence.sinks import AsyncGate
from sinkfence.tokens import Token
from sinkfence_http.door import passage_of
from sinkfence_http.fence import check_parts
from sinkfence_http.verifiers import Verifier


class Fence:
    """As `sinkfence_http.Fence`, with an async gate, for `asgi.FencingMiddleware`. Handlers may be sync."""

    def __init__(self, gate: AsyncGate, verifier: Verifier, *, strict: bool = True) -> None:
        check_parts(gate, verifier, aio=True)
        self.gate = gate
        self.verifier = verifier
        self.strict = strict

    async def admit(self, scope: Mapping[str, Any], job_id: str) -> Token:
        """As `sinkfence_http.Fence.admit`."""
        return passage_of(scope).admit(job_id)
