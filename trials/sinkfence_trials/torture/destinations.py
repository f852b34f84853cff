"""The three destinations as a worker uses them: arm, read, then write what builds on what was read.

Each can be gone round as well (`fenced=False`): a run has to notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from sinkfence.sinks import Bearer
from sinkfence.tokens import Token
from sinkfence_trials.torture.places import with_query

SINKS: Final = ("postgres", "s3", "http")

TIMEOUT: Final = 2.0
"""Seconds after which a worker takes an answer for lost."""

WRITES: Final = {"postgres": b"", "s3": b"PUT ", "http": b"POST "}
"""How a request begins that writes, where one can tell."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a destination showed to an owner who had armed it."""

    last: str | None
    """The id of the last effect."""
    count: int
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The last effects, where the destination keeps them in one object."""


@dataclass(frozen=True, slots=True)
class Write:
    """One effect that is wanted. A repetition is the same again."""

    id: str
    step: str
    base: Seen
    filling: bytes = b""


class Destination(Protocol):
    """One of the three; it is a `Sink`, too."""

    durable: bool
    fenced: bool
    """Whether it is asked by way of the library, or gone round."""

    def arm(self, bearer: Bearer) -> None:
        """Say that this is the owner now."""
        ...

    def read(self, token: Token) -> Seen:
        """Look at what the job has had so far."""
        ...

    def write(self, token: Token, write: Write) -> str:
        """Have the effect; return the id of the attempt that had it, as far as that is told."""
        ...


def detoured(url: str, address: tuple[str, int], name: str) -> str:
    """Return a libpq URI of the same server by way of another address; its name stays, for TLS."""
    parts = urlsplit(url)
    credentials, _, _ = parts.netloc.rpartition("@")
    there = parts._replace(netloc=f"{credentials}@{parts.hostname}:{address[1]}").geturl()
    return named(with_query(there, f"hostaddr={address[0]}&connect_timeout=5"), name)


def named(url: str, name: str) -> str:
    """Return a libpq URI whose sessions bear a name in pg_stat_activity."""
    return with_query(url, f"application_name={quote(name)}")
