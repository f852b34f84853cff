"""A known register: what one process knows of a register: where it is, and what its own last write left."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from sinkfence import observe
from sinkfence.errors import StaleToken
from sinkfence.sinks import Bearer
from sinkfence_s3 import swap
from sinkfence_s3.plan import Seen
from sinkfence_s3.store import Exchange, Store
from sinkfence_s3.swap import Base, Decide, Outcome


class KnownRegister:
    """What is shared by all calls on one object."""

    def __init__(self, store: Store, key: str, ready: Callable[[], None]) -> None:
        self.store = store
        self.key = key
        self.ready = ready
        """Makes sure that the store enforces conditions; called before anything is sent."""
        self.kept: Seen | None = None

    def exchange(self) -> Exchange:
        """Return what counts the requests of one call."""
        return Exchange(self.store, self.key)

    def write(
        self,
        exchange: Exchange,
        bearer: Bearer,
        decide: Decide,
        base: Base | None = None,
        *,
        act: str = "write",
    ) -> Outcome:
        """Write from the state that this owner left here, else from `base`, else from what is read now.

        The bearer is told if it was applied and a newer owner has come since.

        Raises:
            as `swap.write`; the bearer is told of a StaleToken.
        """
        token = bearer.token  # before anything is sent
        self.ready()
        kept = self.kept
        # Another owner's state is most likely no longer the newest.
        if kept is not None and kept.register.token == token:
            base = (kept,)
        with observe.at("s3", act, token), told(bearer):
            outcome = swap.write(exchange, bearer, decide, base)
        self.kept = outcome.seen
        if outcome.superseded is not None:
            observe.refuse("s3", bearer, outcome.superseded)
        return outcome


@contextmanager
def told(bearer: Bearer) -> Generator[None]:
    """Let the bearer hear of a refusal that passes through."""
    try:
        yield
    except StaleToken as stale:
        observe.refuse("s3", bearer, stale)
        raise
