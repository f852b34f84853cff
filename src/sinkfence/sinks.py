"""The seams: what the lease manager asks of a destination, and a service's door of its gate."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Literal, Protocol

from sinkfence.errors import SinkfenceError, StaleToken
from sinkfence.tokens import Token


class Bearer(Protocol):
    """A token, or a live lease: what every sink takes."""

    @property
    def token(self) -> Token:
        """The token to show. A lease raises LeaseLost here once its term is over."""
        ...

    def lose(self, reason: StaleToken) -> None:
        """Hear from a sink that it refused this token as stale; nothing comes back."""
        ...


def check_bearer(bearer: Bearer) -> Bearer:
    """Return what is a bearer; raise TypeError for anything else. Its token is not looked at."""
    if not callable(getattr(bearer, "lose", None)):
        raise TypeError(f"a bearer is a lease or a token, not a {type(bearer).__name__}")
    return bearer


def token_of(bearer: Bearer) -> Token:
    """Return the token that a bearer shows now.

    Raises:
        TypeError: it is no bearer.
        LeaseLost: it is a lease whose term is over.
    """
    return check_bearer(bearer).token


class Sink(Protocol):
    """A destination that checks tokens in its own atomic step."""

    @property
    def durable(self) -> bool:
        """Whether the mark outlives this process. A store that forgets must not arm a sink that doesn't."""
        ...

    def arm(self, bearer: Bearer) -> None:
        """Raise the mark to the bearer's generation: from its return on, nothing lower takes effect here.

        Raises:
            StaleToken, GenerationConflict: the sink has seen a newer owner; `bearer.lose` was called.
        """
        ...


class AsyncSink(Protocol):
    """A `Sink` for an event loop."""

    @property
    def durable(self) -> bool: ...
    async def arm(self, bearer: Bearer) -> None: ...


class Watch(Protocol):
    """What a destination has seen of one request's handler so far, in whatever thread it works."""

    @property
    def committed(self) -> bool:
        """Whether the destination checked what the handler did, and all of it is committed."""
        ...

    @property
    def applied(self) -> bool | None:
        """Whether anything was committed, or may have been; then no answer may say that nothing was.

        None: the gate cannot see.
        """
        ...

    @property
    def refused(self) -> SinkfenceError | None:
        """The error by which the request's token was refused, even if the handler kept it to itself."""
        ...


class Gate(Protocol):
    """What a service's door needs of the destination behind it.

    For each request with an authentic token the door calls `announce`, then runs the handler inside
    `enter`, and asks the watch when the response starts. Where somebody has to be asked whether a token is
    authentic, it calls `check` before.
    """

    def check(self, token: Token) -> None:
        """Tell whether the destination knows the token, and raise no mark.

        Raises:
            NotArmed: its owner was not announced yet, or not to the end.
            StaleToken, GenerationConflict: the destination has seen a newer owner.
        """
        ...

    def announce(self, token: Token) -> None:
        """Make a newer owner known to the destination before its request is handled; refuse an older one.

        Raises:
            StaleToken, GenerationConflict: the destination has seen a newer owner.
            sinkfence_http.Refused: with the answer that the door is to give. After any other error it
                answers 503 `fence-unavailable`.
        """
        ...

    def enter(self, token: Token) -> AbstractContextManager[Watch]:
        """Surround one request's handler, until its response has been sent, and watch over it."""
        ...


class AsyncGate(Protocol):
    """A `Gate` for an event loop."""

    async def check(self, token: Token) -> None: ...
    async def announce(self, token: Token) -> None: ...
    def enter(self, token: Token) -> AbstractAsyncContextManager[Watch]: ...


RequestState = Literal["run", "answered", "reused", "in-progress", "unknown"]
"""What is known of a request that may be a repetition: nothing, so that it must be run; its answer; that its
key was used for another request; that it runs at present; that its attempt ended, and nobody knows how."""


class Claim(Protocol):
    """One request's hold of the record under its idempotency key."""

    @property
    def state(self) -> RequestState:
        """What the record said."""
        ...

    @property
    def answer(self) -> str | None:
        """What was kept, if the state is "answered"."""
        ...

    def keep(self, answer: str) -> None:
        """Keep the answer for repetitions. Of an attempt that was superseded nothing is kept."""
        ...

    def leave(self, *, undone: bool) -> None:
        """End the attempt without an answer. `undone`: a repetition is like a first.

        For nothing was applied, or only what is a step of the ledger. Else the outcome is unknown.
        """
        ...


class Replay(Protocol):
    """Where a gate keeps what it has answered, so that a repetition gets the same answer.

    A record is found by `key`, and belongs to a generation and one attempt of it. A newer generation takes an
    unfinished one over at once.
    """

    @property
    def max_body(self) -> int:
        """How many bytes of a body are kept, and read for being compared."""
        ...

    def claim(self, token: Token, key: str, fingerprint: str) -> AbstractContextManager[Claim]:
        """Surround a request under this key. `fingerprint` is the same for its repetitions alone.

        What was neither kept nor left at the end, as its process was killed, has an unknown outcome, or is
        run again where that is harmless: the gate knows.

        Raises:
            StaleToken, GenerationConflict: the destination has seen a newer owner: this one is told nothing.
        """
        ...


class AsyncClaim(Protocol):
    """A `Claim` for an event loop."""

    @property
    def state(self) -> RequestState: ...
    @property
    def answer(self) -> str | None: ...
    async def keep(self, answer: str) -> None: ...
    async def leave(self, *, undone: bool) -> None: ...


class AsyncReplay(Protocol):
    """A `Replay` for an event loop."""

    @property
    def max_body(self) -> int: ...
    def claim(self, token: Token, key: str, fingerprint: str) -> AbstractAsyncContextManager[AsyncClaim]: ...
