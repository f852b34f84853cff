"""How a command changes something: it shows what, asks, and logs who did it, before and after."""

import contextlib
import logging
import os
import pwd
import select
import sys
from collections.abc import Generator
from typing import Final

from sinkfence.cli.exits import REFUSED
from sinkfence.cli.mistakes import Mistake
from sinkfence.cli.streams import printable, say
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
    if not say("Go on? [y/N] ", end=""):
        raise Mistake("nothing was changed: the question could not be shown")
    # A signal that comes just before a read blocks is heard after it only: so the wait looks up now and then.
    while not select.select([sys.stdin], [], [], 0.5)[0]:
        pass
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Mistake("nothing was changed", REFUSED)


@contextlib.contextmanager
def logged(what: str, where: str) -> Generator[None]:
    """Log who changes what, before and after."""
    log.setLevel(logging.INFO)
    by = who()
    said = printable(f"{by}: {what} in {where}")
    log.info("%s", said, extra={"who": by})
    try:
        yield
    except BaseException as error:
        unknown = isinstance(error, OutcomeUnknown) or not isinstance(error, Exception)
        how = "not known whether it was done" if unknown else "not done"
        log.error("%s: %s (%s)", said, how, type(error).__name__, extra={"who": by})
        raise
    log.info("%s: done", said, extra={"who": by})
