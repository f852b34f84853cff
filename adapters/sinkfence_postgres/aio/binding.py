"""Sessions and engines for an event loop that are given to one bearer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence.sinks import Bearer
from sinkfence_postgres import binding, connections

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

    Target = TypeVar("Target", bound=AsyncEngine | async_sessionmaker[Any])

KINDS: Final = ("sqlalchemy.ext.asyncio:AsyncEngine", "sqlalchemy.ext.asyncio:async_sessionmaker")


def bind(target: Target, bearer: Bearer) -> Target:
    """As `sinkfence_postgres.bind`, for an async_sessionmaker or an AsyncEngine; nothing is awaited."""
    target_: Any = connections.expect(target, *KINDS)
    if connections.is_a(target_, KINDS[0]):
        binding.bind(target_.sync_engine, bearer)
        return target
    # The listeners go on the synchronous sessions inside, whose class may be everybody's: so to a new one.
    base = target_.kw.get("sync_session_class") or target_.class_.sync_session_class
    target_.configure(sync_session_class=type(base.__name__, (base,), {}))
    binding.listen(target_.kw["sync_session_class"], binding.BoundSessions(bearer).listeners())
    return target
