"""A service's fence, for WSGI."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from sinkfence.errors import NotArmed, StaleToken
from sinkfence.sinks import Gate, Replay
from sinkfence.tokens import Token
from sinkfence_http.answers import STALE, Refused
from sinkfence_http.functions import check_function
from sinkfence_http.passage import passage_of
from sinkfence_http.records import identity
from sinkfence_http.verifiers import Verifier

G = TypeVar("G")
R = TypeVar("R")


class Parts(Generic[G, R]):
    """What a fence of either kind is made of, and the word that is the same in both."""

    _aio: ClassVar[bool]

    def __init__(
        self,
        gate: G,
        verifier: Verifier,
        *,
        replay: R | None = None,
        principal: Callable[[Mapping[str, Any]], str] | None = None,
        strict: bool = True,
    ) -> None:
        check_parts(gate, verifier, replay, principal, aio=self._aio)
        self.gate = gate
        self.verifier = verifier
        self.replay = replay
        self.principal = principal
        self.strict = strict
        self._vouch = getattr(verifier, "vouch", None)

    def step(self, request: Mapping[str, Any], name: str) -> str:
        """Return the step that this request is under its Idempotency-Key, to be passed to `once`.

        `request` is its environ or scope. Who is asking is a part of it, as of the record of the answer:
        another customer's request under the same key is another step. It has 65 bytes more than `name`.

        Raises:
            MissingToken: the request came in without one.
            Refused: it has no Idempotency-Key, or the fence has no replay: answered with 400.
        """
        return passage_of(request).step(name)


class Fence(Parts[Gate, Replay]):
    """What `wsgi.FencingMiddleware` enforces, and what a handler asks for its token.

    Args:
        gate: the destination behind the door: a PostgresSink, a HostGate, or by name DoorOnly.
        verifier: who says which tokens are authentic.
        replay: `gate.replay()`: a request with an Idempotency-Key that was answered before gets the same
            answer again. None leaves the key to the handler.
        principal: `principal(environ)` names who is asking, so that nobody is given another's answer. By
            default the token's issuer. Never the owner: a new one must find what the old one was answered.
        strict: a success (2xx, or 3xx but 307 and 308) whose handler never admitted or, on a gate that can
            see it, committed nothing guarded becomes a 500 `not-guarded`: a handler that forgets the check is
            the largest practical hole.

    Raises:
        TypeError: the gate is an async one or none; there is no verifier; `principal` is no plain function.
        ValueError: replay without a principal, of a verifier whose tokens name no issuer.
    """

    _aio = False

    def announce(self, token: Token) -> None:
        """Make the token's owner known to the gate; first ask for it, where it is new and not signed."""
        if self._vouch is not None:
            try:
                self.gate.check(token)
                return
            except NotArmed:
                self._vouch(token)
            except StaleToken:
                raise Refused(STALE) from None  # without the mark: anybody can send an unsigned token
        self.gate.announce(token)

    def admit(self, environ: Mapping[str, Any], job_id: str) -> Token:
        """Return the request's token, to be passed to `transaction`, if it is for this job.

        Compute the job_id from the validated parameters that the handler itself uses, not from the path.

        Raises:
            MissingToken: the request came in without one.
            JobMismatch: its token is for another job.
        """
        return passage_of(environ).admit(job_id)


def key_of(fence: Parts[Any, Any], request: Mapping[str, Any], value: str, token: Token, key: str) -> str:
    """Return under what a request is recorded.

    Raises:
        TypeError: nobody is asking. They must not be given what somebody else was answered.
    """
    verifier: Any = fence.verifier
    who: object = fence.principal(request) if fence.principal else verifier.issuer(value)
    if not isinstance(who, str) or not who:
        raise TypeError("principal must return a str that isn't empty")
    return identity(who, token.job_id, key)


def check_parts(gate: object, verifier: object, replay: object, principal: object, *, aio: bool) -> None:
    """Refuse what a Fence can't be made of, at construction."""
    announce = getattr(gate, "announce", None)
    if announce is None:
        raise TypeError(f"a Fence needs a gate, such as a PostgresSink, not {type(gate).__name__}")
    parts = [inspect.iscoroutinefunction(announce)]
    if (vouch := getattr(verifier, "vouch", None)) is not None:
        parts.append(inspect.iscoroutinefunction(vouch))
    if replay is not None:
        claim = getattr(replay, "claim", None)
        if claim is None:
            raise TypeError(f"replay is what gate.replay() returns, not {type(replay).__name__}")
        parts.append(inspect.isasyncgenfunction(inspect.unwrap(claim)))
    if any(part is not aio for part in parts):
        raise TypeError(
            "sinkfence_http.aio.Fence needs an async gate, such as sinkfence_postgres.aio.PostgresSink, its "
            "own replay, and the AuthorityLookup of sinkfence_http.aio"
            if aio
            else "sinkfence_http.Fence needs a sync gate; before an async one stands sinkfence_http.aio.Fence"
        )
    if not hasattr(verifier, "verify"):
        raise TypeError("a Fence needs a verifier: SignedTokens(keys, audience), or by name TrustedNetwork()")
    if principal is not None:
        check_function("principal", principal)
    if replay is not None and principal is None and not hasattr(verifier, "issuer"):
        raise ValueError(
            "replay needs to know who is asking, and these tokens don't name their issuer: pass "
            "principal=, a function of the environ or scope, such as one that returns the authenticated user"
        )
