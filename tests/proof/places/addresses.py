"""Addresses of servers, and the ways round by a proxy."""

from __future__ import annotations

from urllib.parse import urlsplit


def by_way_of(url: str, address: tuple[str, int]) -> str:
    """The same URL of libpq, by another address; without the encryptions that would be tried first."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    query = "sslmode=disable&gssencmode=disable&connect_timeout=60"
    return parts._replace(netloc=f"{login}@{address[0]}:{address[1]}", query=query).geturl()


def alchemy(url: str) -> str:
    """The same for SQLAlchemy."""
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


def upstream_of(url: str) -> tuple[str, int]:
    """Where the server of a URL listens."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
