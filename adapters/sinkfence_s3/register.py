"""The register: the one small S3 object that holds a fenced object's content, mark and last writes, as bytes.

A frame is `magic, header length, JSON header, payload`. No two frames are the same bytes, because each
carries the random id of its write: the ETag, which most stores derive from the bytes alone, thereby
becomes a version. docs/reference/s3-object-format.md describes it for other languages.

What comes out of a bucket is untrusted: everything is checked, and nothing is overwritten that isn't
understood.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NoReturn, cast

from sinkfence.errors import SchemaMismatch
from sinkfence.marks import Mark
from sinkfence.tokens import Token, check_generation, check_text
from sinkfence_s3.data import Data, generation_of

MAGIC: Final = b"\x89SFREG\r\n"
"""Eight bytes that no text has, and that a transfer in text mode would damage (as PNG's do)."""
FORMAT: Final = 1
RING: Final = 64
"""How many of the last writes, arms included, a register remembers."""
MAX_HEADER: Final = 64 * 1024
"""Bytes; a full ring takes 13 KiB."""
MAX_INLINE: Final = 1024 * 1024
"""Bytes of content that travel inside the register."""
MAX_FRAME: Final = len(MAGIC) + 4 + MAX_HEADER + MAX_INLINE
MAX_SEQ: Final = 10**15 - 1
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One accepted write, as the ring remembers it."""

    seq: int
    write_id: str
    tag: str | None
    """The idempotency key of the step, or None where there was none."""
    generation: int
    digest: str | None
    """The hex SHA-256 of the content, or None for an arming or a deletion."""

    @cached_property
    def text(self) -> str:
        """As it stands in a register: made once, and not at each of the 64 writes that carry it.

        Numbers, and words that need no escape: json would take four times as long.
        """
        tag = "null" if self.tag is None else f'"{self.tag}"'
        digest = "null" if self.digest is None else f'"{self.digest}"'
        return f'[{self.seq},"{self.write_id}",{tag},{self.generation},{digest}]'


@dataclass(frozen=True, slots=True)
class Content:
    """What a put puts."""

    body: bytes | Data
    """The bytes, where they travel inside the register; else where they are."""
    content_type: str | None
    sha256: str
    """Lower-case hex."""
    seq: int
    """The number of the write that put it, which `expect` is compared with; 0 before it is put."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.body.size if isinstance(self.body, Data) else len(self.body)


@dataclass(frozen=True, slots=True)
class Register:
    """One state of a fenced object."""

    token: Token
    """Whose state this is: the token that wrote or armed last."""
    content: Content | None
    """None where the object was only armed, or deleted: to a reader it isn't there."""
    previous_etag: str | None
    ring: tuple[Entry, ...]
    """The last writes, oldest first; the last entry is the write that made this state."""

    @property
    def mark(self) -> Mark:
        """The highest generation that was here, and whose."""
        return Mark(self.token.generation, self.token.owner)

    @property
    def last(self) -> Entry:
        """The write that made this state."""
        return self.ring[-1]


def encode(register: Register) -> bytes:
    """Return the frame of a register."""
    content = register.content
    data = content.body if content is not None and isinstance(content.body, Data) else None
    header: dict[str, Any] = {
        "format": FORMAT,
        "job_id": register.token.job_id,
        "generation": register.token.generation,
        "owner": register.token.owner,
        "seq": register.last.seq,
        "write_id": register.last.write_id,
        "tag": register.last.tag,
        "content": "none" if content is None else "inline" if data is None else "data",
        "content_seq": 0 if content is None else content.seq,
        "content_type": None if content is None else content.content_type,
        "size": 0 if content is None else content.size,
        "sha256": None if content is None else content.sha256,
        "previous_etag": register.previous_etag,
    }
    if data is not None:
        header["data"] = data.name
    text = _JSON.encode(header)
    ring = ",".join([entry.text for entry in register.ring])
    encoded = f'{text[:-1]},"ring":[{ring}]}}'.encode()
    payload = content.body if content is not None and isinstance(content.body, bytes) else b""
    return b"".join((MAGIC, len(encoded).to_bytes(4, "big"), encoded, payload))


def decode(frame: bytes, key: str) -> Register:
    """Return the register that a frame holds; `key` is for the message.

    Raises:
        SchemaMismatch: this is no register, a damaged one, or one of a later format.
    """
    start = len(MAGIC) + 4
    if frame[: len(MAGIC)] != MAGIC or len(frame) < start:
        not_a_register(key, "it doesn't begin as one")
    size = int.from_bytes(frame[len(MAGIC) : start], "big")
    if size > MAX_HEADER or start + size > len(frame):
        not_a_register(key, f"its header claims {size} bytes")
    try:
        parsed: object = json.loads(frame[start : start + size].decode())
        _expect(isinstance(parsed, dict), "the header is no object")
        header = cast("dict[str, Any]", parsed)
        # Looked at before anything else: a later format may have changed everything else.
        if _count(header["format"]) != FORMAT or header["content"] not in ("none", "inline", "data"):
            raise SchemaMismatch(
                f"the object at {key!r} is a register of format {header['format']!r}, and this sinkfence "
                f"knows format {FORMAT}: upgrade it. Nothing was overwritten"
            )
        return _register(header, frame[start + size :])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        not_a_register(key, f"its header is damaged ({type(error).__name__}: {error})")


def not_a_register(key: str, why: str) -> NoReturn:
    """Raise the error for something at the key that isn't ours to overwrite."""
    raise SchemaMismatch(
        f"the object at {key!r} is not a sinkfence register: {why}. Nothing was overwritten: "
        "choose another name, or move that object away"
    )


def check_content_type(value: object) -> str | None:
    """Return value if it is None or 1 to 255 printable ASCII characters.

    Raises:
        TypeError, ValueError: otherwise.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"content_type must be a str, not {type(value).__name__}")
    if not 1 <= len(value) <= 255 or not value.isascii() or not value.isprintable():
        raise ValueError("content_type must be 1 to 255 printable ASCII characters")
    return value


def _register(header: dict[str, Any], payload: bytes) -> Register:
    _expect(isinstance(header["ring"], list), "the ring is no array")
    ring = tuple(_entry(item) for item in header["ring"])
    _expect(1 <= len(ring) <= RING, f"the ring has {len(ring)} entries")
    seqs = [entry.seq for entry in ring]
    _expect(seqs == list(range(seqs[0], seqs[0] + len(ring))), "the ring has gaps")
    register = Register(
        token=Token(header["job_id"], header["generation"], header["owner"]),
        content=_content(header, payload),
        previous_etag=None
        if header["previous_etag"] is None
        else check_text("an ETag", header["previous_etag"]),
        ring=ring,
    )
    last = register.last
    stated = (header["seq"], header["write_id"], header["tag"], header["generation"])
    _expect(
        stated == (last.seq, last.write_id, last.tag, last.generation),
        "the ring's last entry is another write",
    )
    return register


def _content(header: dict[str, Any], payload: bytes) -> Content | None:
    seq = _count(header["content_seq"])
    size = _count(header["size"])
    if header["content"] == "none":
        _expect(seq == 0 and size == 0 and not payload, "content where there should be none")
        return None
    _expect(1 <= seq <= _count(header["seq"]), "content_seq is out of range")
    content_type = check_content_type(header["content_type"])
    if header["content"] == "data":
        name, digest = header["data"], header["sha256"]
        generation = generation_of(name)
        _expect(generation is not None and generation <= header["generation"], "no name of a data object")
        _expect(isinstance(digest, str) and _SHA256.fullmatch(digest) is not None, "no SHA-256")
        _expect(not payload, "content in the register as well as beside it")
        return Content(Data(name, size), content_type, digest, seq)
    _expect(size == len(payload), f"{len(payload)} bytes of content, {size} stated")
    digest = hashlib.sha256(payload).hexdigest()
    _expect(digest == header["sha256"], "the content's SHA-256 is another")
    return Content(payload, content_type, digest, seq)


def _entry(item: Any) -> Entry:
    _expect(isinstance(item, list), "an entry of the ring is no array")
    fields: list[Any] = item
    _expect(len(fields) == 5, "an entry of the ring isn't five values")
    seq, write_id, tag, generation, digest = fields
    return Entry(
        seq=_count(seq),
        write_id=_word(write_id),
        tag=None if tag is None else _word(tag),
        generation=check_generation(generation),
        digest=None if digest is None else _word(digest),
    )


def _count(value: object) -> int:
    _expect(type(value) is int and 0 <= value <= MAX_SEQ, "a number is missing or out of range")
    return cast("int", value)


def _word(value: object) -> str:
    _expect(
        isinstance(value, str) and _WORD.fullmatch(value) is not None,
        "an id, tag or digest isn't a short word",
    )
    return cast("str", value)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
