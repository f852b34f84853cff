"""Text in a picture: made safe for XML, measured, shortened, and kept apart."""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final
from unicodedata import east_asian_width

# What XML 1.0 has no way to write, and the lone surrogates that UTF-8 has none for (section 2.2, Char).
_UNSPEAKABLE: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def safe(text: object) -> str:
    """Return text for an element or a quoted attribute, whatever a job id has in it."""
    return html.escape(_UNSPEAKABLE.sub("\ufffd", str(text)))


def width(text: str, size: float) -> float:
    """Estimate how wide a text is, rather too wide: fonts differ, and labels must not touch."""
    return sum(1.1 if east_asian_width(each) in "WF" else 0.58 for each in text) * size


def shortened(text: str, room: float, size: float) -> str:
    """Return a text that has room: its beginning and its end, where it is too long."""
    if width(text, size) <= room:
        return text
    keep = len(text)
    while keep > 2 and width(text[: keep // 2] + "…" + text[-(keep // 2) :], size) > room:
        keep -= 1
    return text[: keep // 2] + "…" + text[-(keep // 2) :]


def seconds(span: float) -> str:
    """Return a length of time, with as many digits as are of use."""
    return f"{span * 1000:.0f} ms" if span < 0.1 else f"{span:.1f} s" if span < 100 else f"{span:.0f} s"


Span = tuple[float, float]
"""From where to where, across."""


class Room:
    """What is taken on each lane of a picture, by its y: no words lie on others, or on marks."""

    def __init__(self) -> None:
        self._taken: defaultdict[float, list[Span]] = defaultdict(list)

    def take(self, y: float, span: Span) -> None:
        """Have it that something stands there."""
        self._taken[y].append(span)

    def first(self, y: float, places: Iterable[Span]) -> float | None:
        """Take the first place that is free, and return where it begins."""
        for begin, end in places:
            if not any(begin < other_end + 3 and other < end + 3 for other, other_end in self._taken[y]):
                self.take(y, (begin, end))
                return begin
        return None
