"""Which keys may be those of objects, and which prefixes may stand before them."""

from __future__ import annotations

from typing import Final

PROBES: Final = ".sinkfence-probe"
"""The folder of a prefix where its store is tried out."""
MAX_KEY: Final = 1024
"""Bytes of UTF-8 (Amazon S3 user guide, "Naming Amazon S3 objects")."""
MAX_PREFIX: Final = 900
"""Bytes of UTF-8: the probe's keys fit after it, and names of objects."""


def check_prefix(prefix: str) -> str:
    """Return a prefix under which there can be objects.

    Raises:
        TypeError, ValueError: it is no str, too long, or no key may begin so.
    """
    if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if len(prefix.encode()) > MAX_PREFIX:
        raise ValueError(f"a prefix has at most {MAX_PREFIX} UTF-8 bytes: names have to fit after it")
    check_key(prefix + "name")
    return str.__str__(prefix)  # of a str Enum the value, as its member equals it


def check_key(key: str) -> str:
    """Return a key that can be an object's.

    Raises:
        ValueError: it is too long, malformed, or reserved.
    """
    if len(key.encode()) > MAX_KEY:
        raise ValueError(f"a key has at most {MAX_KEY} UTF-8 bytes, prefix included")
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in key):
        raise ValueError("a key must not hold control characters")
    *folders, last = parts = key.split("/")
    # The last part, too: where a store keeps keys as paths, an object `a.d` is in the way of the data of `a`.
    if any(part.endswith(".d") for part in parts):
        raise ValueError("what ends in '.d' is reserved for the data of the object before it")
    if any(part.endswith(PROBES) for part in parts):
        raise ValueError(f"what ends in {PROBES!r} is reserved for probes")
    # Some stores resolve these as a file system would: two names for one object, or none.
    if "\\" in key or last in (".", "..") or any(folder in ("", ".", "..") for folder in folders):
        raise ValueError("a key must not hold a backslash, nor '', '.' or '..' as a folder")
    return key
