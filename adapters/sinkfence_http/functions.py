"""A service's own functions, which the door asks: of the right kind, and of a clear word."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def check_function(name: str, function: object) -> None:
    """Refuse what can't be called, and an async function: its coroutine would be taken for the answer.

    Raises:
        TypeError: it is one.
    """
    while isinstance(function, partial):
        function = function.func
    if not callable(function):
        raise TypeError(f"{name} is a function, not a {type(function).__name__}")
    kinds = (function, getattr(type(function), "__call__", None))  # noqa: B004  # the method, not whether
    if any(inspect.iscoroutinefunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
        raise TypeError(f"{name} is a plain function: what an async one returns is true whatever it says")


def is_exempt(exempt: Callable[[Any], bool] | None, request: Any) -> bool:
    """Return whether a request needs no token.

    Raises:
        TypeError: the function doesn't say.
    """
    if exempt is None:
        return False
    answer: Any = exempt(request)
    if not isinstance(answer, bool):
        raise TypeError(f"exempt returns True or False, not a {type(answer).__name__}")
    return answer
