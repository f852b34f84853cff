"""A data object: an immutable S3 object beside a register, for content that is too long to be inside it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

MAX_SUFFIX: Final = len(".d/") + 15 + 1 + 32
"""By how many bytes the key of a data object may be longer than its register's: `.d/`, 15 digits of the
generation, a hyphen and 32 hex digits."""
_NAME: Final = re.compile(r"([1-9][0-9]{0,14})-[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Data:
    """Where a content is."""

    name: str
    """Within the register's folder: the generation that made it, and a random word, `7-5f0c…`."""
    size: int
    """Bytes."""


def folder(key: str) -> str:
    """Return what the keys of a register's data objects begin with."""
    return f"{key}.d/"


def fresh_name(generation: int) -> str:
    """Return a name that no data object has, nor ever had."""
    return f"{generation}-{secrets.token_hex(16)}"


def generation_of(name: object) -> int | None:
    """Return the generation in a data object's name, or None if it isn't the name of one."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else int(match[1])
