"""A value that is set once: by whoever comes first, be it a thread or a signal's handler."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Nothing, until a value is offered; that one from then on.

    `dict.setdefault` is one call in C: no signal's handler and no other thread can run between its look and
    its write. A lock would do it, too, but a handler that interrupts its holder would wait for ever.
    """

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[None, tuple[T]] = {}

    @property
    def value(self) -> T | None:
        """What was offered first, or None."""
        return self._first[None][0] if self._first else None

    def offer(self, value: T) -> bool:
        """Offer a value, and return whether it is the first."""
        mine = (value,)  # which is no other offer's, though the value may be the same
        return self._first.setdefault(None, mine) is mine
