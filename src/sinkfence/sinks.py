"""The seams: what the lease manager asks of a destination, and a service's door of its gate."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

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
    def durable(self) -> bool:
        """As `Sink.durable`."""
        ...

    async def arm(self, bearer: Bearer) -> None:
        """As `Sink.arm`."""
        ...


class Watch(Protocol):
    """What a destination has seen of one request's handler so far, in whatever thread it works."""

    @property
    def committed(self) -> bool:
        """Whether the destination checked what the handler did, and all of it is committed."""
        ...

    @property
    def applied(self) -> bool:
        """Whether anything of it was committed, or may have been: no answer may deny that."""
        ...

    @property
    def refused(self) -> SinkfenceError | None:
        """The error by which the request's token was refused, even if the handler kept it to itself."""
        ...


class Gate(Protocol):
    """What a service's door needs of the destination behind it.

    For each request with an authentic token the door calls `announce`, then runs the handler inside
    `enter`, and asks the watch when the response starts.
    """

    def announce(self, token: Token) -> None:
        """Make a newer owner known to the destination before its request is handled; refuse an older one.

        Raises:
            StaleToken, GenerationConflict: the destination has seen a newer owner.
        """
        ...

    def enter(self, token: Token) -> AbstractContextManager[Watch]:
        """Surround one request's handler, until its response has been sent, and watch over it."""
        ...


class AsyncGate(Protocol):
    """A `Gate` for an event loop."""

    async def announce(self, token: Token) -> None:
        """As `Gate.announce`."""
        ...

    def enter(self, token: Token) -> AbstractAsyncContextManager[Watch]:
        """As `Gate.enter`."""
        ...
