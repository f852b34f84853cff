"""A place that may be told of, and the secrets that lead there, which may not."""

import contextlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from sinkfence.cli.exits import MISSING
from sinkfence.cli.mistakes import Mistake, told

SHORT: Final = 6
"""Of fewer letters a secret is found in other words, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """What may be said of it, and what may not."""

    says: str
    """Without any of the secrets."""
    secrets: tuple[str | None, ...] = ()
    file: str | None = None
    """That of an SQLite database, as SQLAlchemy has it."""

    def masked(self, text: str) -> str:
        """Return a text without the secrets, in whichever way it has them written."""
        # What we say of the place ourselves has none: a short one would be found in our own words.
        return self.says.join(map(self._masked, text.split(self.says)))

    def _masked(self, text: str) -> str:
        forms = {form for secret in self.secrets if secret for form in _forms(secret)}
        for form in sorted(forms, key=len, reverse=True):
            text = re.sub(_pattern(form), "***", text)
        return text

    def __str__(self) -> str:
        return self.says


def _forms(secret: str) -> set[str]:
    forms = {secret, repr(secret)[1:-1], ascii(secret)[1:-1]}
    with contextlib.suppress(UnicodeEncodeError):  # half surrogates, of an argument that is no text
        forms |= {quote(secret), quote(secret, safe="")}
    return forms


def _pattern(form: str) -> str:
    # A short one is one where it stands by itself: taken out of other words it would be spelt by the gaps.
    word = form.isalnum() and len(form) < SHORT
    return rf"(?<!\w){re.escape(form)}(?!\w)" if word else re.escape(form)


def _of_ours(error: ValueError) -> str:
    if isinstance(error, UnicodeEncodeError):  # which would show a letter of it
        return "a user name, a password or a header has a letter that can't be sent there"
    return " ".join(str(error).split())


@contextlib.contextmanager
def reaching(place: Place) -> Generator[None]:
    """Say of what goes wrong where it did, without the place's secrets."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        found = told(error)
        if found is None and isinstance(error, ValueError):  # of our own checks of what was given
            found = Mistake(_of_ours(error))
        if found is None:
            raise
        says = place.masked(str(found))
        if found.code == MISSING and not isinstance(error, Mistake):
            says = f"{place}: {says}"
        raise Mistake(says, found.code) from None
