"""What went wrong, in a line of plain words with an exit code: for all that is not a bug of ours."""

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Protocol

from sinkfence import findings
from sinkfence.cli.exits import FINE, INTERRUPTED, MISSING, REFUSED, USAGE
from sinkfence.errors import GenerationExhausted, LeaseHeld, LeaseLost, SinkfenceError

_BLOCKED: Final = "somebody's open transaction has the record locked: end that, or try again"
_NO: Final = (GenerationExhausted, LeaseHeld, LeaseLost)


class Mistake(Exception):
    """What the user can mend, said in a line."""

    def __init__(self, says: str, code: int = USAGE) -> None:
        super().__init__(says)
        self.code = code


def heard(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Run the command line, say what went wrong, and return the exit code."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # of a test, or of a program that embeds us
            # A terminal that lacks a letter of some job's name must not end the command.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(list(arguments), prog_name="sinkfence")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FINE
    except KeyboardInterrupt:
        _complain("interrupted")
        code = INTERRUPTED
    except Exception as error:
        found = told(error)
        if found is None:
            raise
        _complain(str(found))
        code = found.code
    else:
        code = FINE
    return _flushed(code)


def _flushed(code: int) -> int:
    """Write what is left, and return the exit code, which is another one where that fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Python flushes once more at its exit, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and isinstance(error, BrokenPipeError):
                code = REFUSED  # whoever read has gone, `| head` say
            elif stream is sys.stdout and code == FINE:
                _complain(f"the output could not be written: {error.strerror}")
                code = MISSING
    return code


def _complain(says: str) -> None:
    with contextlib.suppress(OSError):  # nobody hears it: the exit code is all that there is to tell
        print(f"sinkfence: {printable(says)}", file=sys.stderr, flush=True)


class Masking(Protocol):
    """Where something goes wrong, and how to tell of it."""

    def masked(self, text: str) -> str:
        """Return a text without the secrets that lead there."""
        ...


@contextlib.contextmanager
def reaching(place: Masking) -> Generator[None]:
    """Say of what goes wrong where it did, without its secrets; what is logged meanwhile has none either."""

    def mask(record: logging.LogRecord) -> bool:
        record.msg, record.args = place.masked(record.getMessage()), ()
        return True

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(mask)
    try:
        yield
    except BrokenPipeError:
        raise
    except Mistake as mistake:
        raise Mistake(place.masked(str(mistake)), mistake.code) from None
    except Exception as error:
        found = told(error)
        if found is None and isinstance(error, ValueError):  # of our own checks of what was given
            found = Mistake(str(error))
        if found is None:
            raise
        says = place.masked(str(found))
        raise Mistake(f"{place}: {says}" if found.code == MISSING else says, found.code) from None
    finally:
        for handler in handlers:
            handler.removeFilter(mask)


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
        # Which part of it is wrong is not told: that may be a password.
        return Mistake("that is no connection string: postgresql://USER@HOST:5432/DATABASE")
    if getattr(own, "sqlstate", None) == "55P03" or "database is locked" in str(own):
        return Mistake(_BLOCKED, REFUSED)
    if "sqlalchemy.ArgumentError" in kinds:
        return Mistake(
            "that is no database URL: postgresql+psycopg://USER@HOST:5432/DATABASE or sqlite:///FILE"
        )
    outside = {
        "sqlalchemy.SQLAlchemyError",
        "psycopg.Error",
        "requests.RequestException",
        "urllib3.HTTPError",
        "botocore.BotoCoreError",
        "botocore.ClientError",
        "builtins.OSError",
    }
    if kinds & outside:
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


def printable(text: str) -> str:
    """Return text that does nothing to a terminal, whoever wrote it."""
    return re.sub(r"[^\n\t]+", lambda found: findings.printable(found[0]), text)
