"""What the user can mend, in a line of plain words with an exit code: all that is not a bug of ours."""

import re
from typing import Final

from sinkfence.cli.exits import MISSING, REFUSED, USAGE
from sinkfence.errors import GenerationExhausted, LeaseHeld, LeaseLost, SinkfenceError

NO_URL: Final = "that is no database URL: postgresql+psycopg://USER@HOST:5432/DATABASE or sqlite:///FILE"
NO_DSN: Final = "that is no connection string: postgresql://USER@HOST:5432/DATABASE"
_BLOCKED: Final = "somebody's open transaction has the record locked: end that, or try again"
_NO: Final = (GenerationExhausted, LeaseHeld, LeaseLost)
_OUTSIDE: Final = {
    "sqlalchemy.SQLAlchemyError",
    "psycopg.Error",
    "requests.RequestException",
    "urllib3.HTTPError",
    "botocore.BotoCoreError",
    "botocore.ClientError",
    "builtins.OSError",
}
"""Errors of what is talked to, by name: not all of these packages are installed."""


class Mistake(Exception):
    """What the user can mend, said in a line."""

    def __init__(self, says: str, code: int = USAGE) -> None:
        super().__init__(says)
        self.code = code


def told(error: Exception) -> Mistake | None:
    """Return what an error says to a user, or None where it is nobody's mistake but ours."""
    if isinstance(error, Mistake):
        return error
    if isinstance(error, SinkfenceError):
        return Mistake(str(error), REFUSED if isinstance(error, _NO) else MISSING)
    if isinstance(error, ImportError) and "pip install" in str(error):
        return Mistake(str(error), MISSING)
    if isinstance(error, ImportError) and "psycopg" in str(error):  # it is there, and its half in C is not
        return Mistake("psycopg can't be loaded without libpq: pip install 'psycopg[binary]'", MISSING)
    own = getattr(error, "orig", None) or error
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in _kinds(error, own)}
    if "psycopg.ProgrammingError" in kinds and getattr(own, "sqlstate", None) is None:
        return Mistake(NO_DSN)  # of which part is wrong nothing is told: it may be a password
    if getattr(own, "sqlstate", None) == "55P03" or "database is locked" in str(own):
        return Mistake(_BLOCKED, REFUSED)
    if kinds & _OUTSIDE:
        # A malformed header or URL is both an error of requests and a ValueError.
        return Mistake(_short(own), USAGE if isinstance(error, ValueError) else MISSING)
    return None


def _kinds(*errors: object) -> list[type]:
    return [kind for error in errors for kind in type(error).__mro__]


def _short(error: object) -> str:
    """Return what an error of a library says, without its account of pools and retries."""
    text = " ".join(str(error).split()) or type(error).__name__
    system = re.search(r"\[Errno -?\d+\] ([^'\")]+)", text)
    return system[1] if system and "HTTP" in text else text
