"""What a completed job or a step done once leaves behind: a small JSON value."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final

MAX_RESULT_BYTES: Final = 65_536
MAX_RESULT_DEPTH: Final = 100
"""What is nested deeper, whoever looks at it may have no room on the stack to read."""


def as_json(result: Any) -> str:
    """Return the result as it is kept.

    Raises:
        TypeError, ValueError: it is no JSON, longer than 64 KiB, or nested too deep.
    """
    try:
        text = json.dumps(result, allow_nan=False)
    except RecursionError:
        raise ValueError(f"a result may be nested {MAX_RESULT_DEPTH} deep") from None
    if len(text) > MAX_RESULT_BYTES:  # ASCII: a character is a byte
        raise ValueError(f"a result may have {MAX_RESULT_BYTES} bytes as JSON, this one has {len(text)}")
    brackets = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    depths = accumulate((each in "[{") - (each in "]}") for each in brackets)
    if max(depths, default=0) > MAX_RESULT_DEPTH:
        raise ValueError(f"a result may be nested {MAX_RESULT_DEPTH} deep")
    return text
