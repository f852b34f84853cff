"""What is said of a wrong usage: no word that may be a place, and lead there by a password."""

import contextlib
from collections.abc import Generator
from typing import Any

from typer.core import TyperGroup

from sinkfence.cli.masking import Place


class Root(TyperGroup):
    """All commands: what the parser says of any of their words goes by here."""

    words: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note what was typed."""
        self.words = tuple(args)
        with self._masking():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with self._masking():
            return super().invoke(ctx)

    @contextlib.contextmanager
    def _masking(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            says: Any = getattr(error, "message", None)  # click's own, whose class is typer's or click's
            if isinstance(says, str):
                vars(error)["message"] = masked(says, self.words, commands(error))
            raise


def masked(says: str, words: tuple[str, ...], names: list[str]) -> str:
    """Return what is said without the words that may be places, and which commands go before them."""
    typed = [part for word in words for part in (word, word.partition("=")[2])]
    places = tuple(word for word in typed if any(mark in word for mark in ("://", "@", "=")))
    told = Place("the place", places).masked(says)
    if told == says or not names:
        return told
    meant = [name for name in names if any(place.startswith(name) for place in places)]
    return f"{told.rstrip('.')}. Before a place comes a command: {', '.join(meant or names)}."


def commands(error: Exception) -> list[str]:
    """Return the names in the group of commands that an error is about, none where it is about another."""
    group: Any = getattr(getattr(error, "ctx", None), "command", None)
    return list(getattr(group, "commands", ()))
