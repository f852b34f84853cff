"""A place that may be told of, and the secrets that lead there, which may not."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import quote

from sinkfence.cli.exits import MISSING
from sinkfence.cli.mistakes import Mistake, told


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
        forms = {form for secret in self.secrets if secret for form in _forms(secret)}
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, "***")
        return text

    def __str__(self) -> str:
        return self.says


def _forms(secret: str) -> set[str]:
    forms = {secret, repr(secret)[1:-1], ascii(secret)[1:-1]}
    with contextlib.suppress(UnicodeEncodeError):  # half surrogates, of an argument that is no text
        forms |= {quote(secret), quote(secret, safe="")}
    return forms


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
            found = Mistake(str(error))
        if found is None:
            raise
        says = place.masked(str(found))
        if found.code == MISSING and not isinstance(error, Mistake):
            says = f"{place}: {says}"
        raise Mistake(says, found.code) from None
