"""Standard output and standard error: closed, full, without a reader, or of few letters, and no traceback."""

import contextlib
import os
import re
import sys

from sinkfence import findings
from sinkfence.cli.exits import FINE, MISSING, REFUSED


def stand_in() -> None:
    """Put something in the place of streams that are closed: else the next file or socket takes their number.

    What is written to a closed standard output then fails, as it has to; a closed standard error is silence.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)  # the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def spell_out() -> None:
    """Spell out the letters that a terminal lacks: one in some job's name must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # of a test, or of a program that embeds us
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def printable(text: str) -> str:
    """Return text that does nothing to a terminal, whoever wrote it."""
    return re.sub(r"[^\n\t]+", lambda found: findings.printable(found[0]), text)


def say(what: str, end: str = "\n") -> bool:
    """Tell the user something apart from the output, and return whether that was possible."""
    try:
        print(printable(what), end=end, file=sys.stderr, flush=True)
    except OSError:
        return False
    return True


def flushed(code: int) -> int:
    """Write what is left, and return the exit code, which is another one where that fails."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Python flushes once more at its exit, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and isinstance(error, BrokenPipeError):
                code = REFUSED  # the reader has gone, `| head` say
            elif stream is sys.stdout and code == FINE:
                say(f"sinkfence: the output could not be written: {error.strerror}")
                code = MISSING
    return code
