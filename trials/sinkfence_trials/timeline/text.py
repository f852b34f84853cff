"""Text in a picture: made safe for XML, measured, and shortened."""

from __future__ import annotations

import html
import re
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


def fitting(texts: tuple[str, ...], room: float, size: float) -> str:
    """Return the first of some texts, from long to short, that has room; "" where none has."""
    return next((text for text in texts if width(text, size) <= room), "")


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
