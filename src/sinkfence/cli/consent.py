"""How a command changes something: it shows what, asks, and logs who did it, before and after."""

import contextlib
import logging
import os
import pwd
import sys
from collections.abc import Generator
from typing import Final

from sinkfence.cli.exits import REFUSED
from sinkfence.cli.mistakes import Mistake, printable
from sinkfence.errors import OutcomeUnknown

log: Final = logging.getLogger("sinkfence.cli")


def who() -> str:
    """Return the user at this host, by the system's word and not by a variable's."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    if by := os.environ.get("SUDO_USER"):
        name += f" (sudo by {by})"
    return f"{name}@{os.uname().nodename}"


def say(what: str) -> None:
    """Say something to whoever sits there, apart from what the command prints."""
    with contextlib.suppress(OSError):  # nobody hears it; who has to be asked is not, then
        print(printable(what), file=sys.stderr, flush=True)


def ask(what: str, *, yes: bool) -> None:
    """Show what is about to be done, and do nothing more if that may go on.

    Raises:
        Mistake: nobody is there to be asked, or the answer was no.
    """
    say(what)
    if yes:
        return
    if not sys.stdin.isatty():
        raise Mistake("nothing was changed: nobody is there to be asked, so add --yes")
    try:
        print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    except OSError:
        raise Mistake("nothing was changed: the question could not be shown") from None
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Mistake("nothing was changed", REFUSED)


@contextlib.contextmanager
def logged(what: str, where: str) -> Generator[None]:
    """Log who changes what, before and after."""
    log.setLevel(logging.INFO)
    by = who()
    said = printable(f"{what} in {where}")
    log.info("%s: %s", by, said, extra={"who": by})
    try:
        yield
    except BaseException as error:
        unknown = isinstance(error, OutcomeUnknown) or not isinstance(error, Exception)
        how = "not known whether it was done" if unknown else "not done"
        log.error("%s: %s: %s (%s)", by, said, how, type(error).__name__, extra={"who": by})
        raise
    log.info("%s: %s: done", by, said, extra={"who": by})
