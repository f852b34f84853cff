"""What a fenced request and its answer look like: headers, as RFC 9651 structured fields; pure.

The parser takes less than RFC 9651 allows, never more: what it accepts, an RFC 9651 parser reads alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from sinkfence.tokens import Token, parse_generation

TOKEN: Final = "Fencing-Token"  # noqa: S105  # the name of a header
STATUS: Final = "Fencing-Status"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"

ARM_PATH: Final = "/.well-known/fencing-arm"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""The methods that pass without a token (RFC 9110, section 9.2.1). One that nobody knows is fenced."""

MAX_HEADER: Final = 2048
"""How long a Fencing-Token value may be, in bytes."""
MAX_ENCODED: Final = 600
"""How long a percent-encoded job_id or owner may be: three characters for each of 200 bytes."""

# Everything printable but the space, and but % " \ which would need an escape inside a String.
_PLAIN: Final = "".join(map(chr, range(0x21, 0x7F))).translate(dict.fromkeys(map(ord, '%"\\')))

# sf-string and sf-token, RFC 9651 sections 3.3.3 and 3.3.4. The member is matched as a whole: one that is
# followed by anything, a comma and a second member above all, doesn't match.
_STRING: Final = r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
_UNSIGNED: Final = re.compile(
    rf" *{_STRING}(?:; *g=(?P<g1>[0-9]+); *o={_STRING}|; *o={_STRING}; *g=(?P<g2>[0-9]+)) *"
)
_SIGNED: Final = re.compile(r" *([A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_`|~:/]*) *")
_QUOTED: Final = re.compile(_STRING)
_BARE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x5b\x5d-\x7e][\x21-\x2b\x2d-\x7e]*")
_STATUS: Final = re.compile(r" *([a-z][a-z-]*)((?:; *[a-z]+(?:=[0-9]{1,15})?)*) *")
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Status:
    """What a `Fencing-Status` says: the word that a caller decides on, and the mark where it is disclosed."""

    word: str
    current: int | None = None
    applied: bool = False
    """Whether something of the request was applied, or may have been, before it was refused."""
    replayed: bool = False
    """Whether the answer is one that was kept from an earlier attempt."""


def format_token(token: Token) -> str:
    """Return the unsigned form, `"job";g=8;o="owner"`: job_id and owner as percent-encoded UTF-8."""
    return f'"{quote(token.job_id, safe=_PLAIN)}";g={token.generation};o="{quote(token.owner, safe=_PLAIN)}"'


def parse_token(value: str) -> Token:
    """Read an unsigned member.

    Unknown and repeated parameters are refused: one that we don't know might narrow what the token allows.

    Raises:
        ValueError: anything else than exactly one such member. The value is not echoed: a stranger wrote it.
    """
    match = _UNSIGNED.fullmatch(_bounded(value))
    if match is None:
        raise ValueError("a Fencing-Token is one member, a String with an Integer g and a String o")
    job, owner_last, owner_first = match.group(1, 3, 4)
    owner = owner_last if owner_last is not None else owner_first
    generation = parse_generation(match["g1"] or match["g2"])
    return make_token(_decoded(job), generation, _decoded(owner))


def parse_signed(value: str) -> str:
    """Read a signed member, a compact JWS as one Token (RFC 9651, section 3.3.4), without parameters.

    Raises:
        ValueError: anything else than exactly one such member.
    """
    match = _SIGNED.fullmatch(_bounded(value))
    if match is None:
        raise ValueError("a signed Fencing-Token is one member, a compact JWS")
    return match[1]


def make_token(job_id: object, generation: object, owner: object) -> Token:
    """Build the token of what a stranger sent.

    U+FFFD is what is left of bytes that were no UTF-8: two different ids may have become this one.

    Raises:
        ValueError: the fields are no token, of whatever type they are.
    """
    try:
        token = Token(job_id, generation, owner)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except TypeError as error:
        raise ValueError(str(error)) from None
    if "\ufffd" in token.job_id or "\ufffd" in token.owner:
        raise ValueError("U+FFFD stands for bytes that were lost")
    return token


def parse_idempotency_key(value: str) -> str:
    """Read an Idempotency-Key: quoted (a String) or bare, the same key; 1 to 255 of %x21-7E.

    A bare key holds no comma and opens with no quote: two keys that a proxy joined must not pass for one.

    Raises:
        ValueError: anything else.
    """
    text = value.strip(" ")
    quoted = _QUOTED.fullmatch(text)
    key = _unescaped(quoted[1]) if quoted else text
    if not (1 <= len(key) <= 255) or " " in key or not (quoted or _BARE.fullmatch(text)):
        raise ValueError("an Idempotency-Key is 1 to 255 printable ASCII characters without spaces")
    return key


def format_status(status: Status) -> str:
    """Return `accepted`, `accepted;replayed`, `stale-token;current=9`, or `stale-token;current=9;applied`."""
    current = "" if status.current is None else f";current={status.current}"
    flags = "".join(f";{name}" for name in ("applied", "replayed") if getattr(status, name))
    return f"{status.word}{current}{flags}"


def parse_status(value: str | None) -> Status | None:
    """Read a `Fencing-Status`: None where it is absent or unreadable, as one that was sent twice is.

    Parameters that this version doesn't know are ignored: a later one may say more.
    """
    match = _STATUS.fullmatch(value) if value is not None and len(value) <= MAX_HEADER else None
    if match is None:
        return None
    current = re.findall(r"; *current=([0-9]+)", match[2])
    flags = re.findall(r"; *(applied|replayed)(?![a-z=])", match[2])
    return Status(match[1], int(current[0]) if current else None, "applied" in flags, "replayed" in flags)


def _bounded(value: str) -> str:
    if len(value) > MAX_HEADER:
        raise ValueError(f"a Fencing-Token has at most {MAX_HEADER} bytes")
    return value


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _decoded(text: str) -> str:
    encoded = _unescaped(text)
    if len(encoded) > MAX_ENCODED or _PERCENT.search(encoded):
        raise ValueError("a job_id or an owner is percent-encoded UTF-8")
    return unquote_to_bytes(encoded).decode()  # UnicodeDecodeError is a ValueError
