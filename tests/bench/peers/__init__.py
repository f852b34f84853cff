"""Late owners at other packages, each used as its own documentation says: a table of what was seen.

A worker takes a job, is stopped past its lease (SIGSTOP), and goes on after another one has come: it writes
to a row of the user's in PostgreSQL, and then says to the package that it is done. What that means, and what
each package promises, is told in docs/explanation/peers.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers.scenes import NAMES, Seen, missing, play, redis_server, version
from sinkfence_trials.servers.postgres import postgres

HEAD = """\
| package | the successor | late write to the user's row | late completion | the late worker heard |
| --- | --- | --- | --- | --- |"""


def bench(small: bool) -> Iterator[str]:
    """Play both scenes at each package that is here; `small`: one, at sinkfence."""
    lines, absent = [HEAD], []
    with postgres() as server, redis_server() as redis:
        for name in NAMES[:1] if small else NAMES:
            if lacks := missing(name, redis):
                absent.append(f"not run: {name} ({lacks})")
                continue
            for finished in (True,) if small else (True, False):
                lines.append(row(version(name), play(name, server, redis, finished=finished)))
    yield "\n".join(lines)
    yield from absent


def row(package: str, seen: Seen) -> str:
    """Return a line of the table."""
    outcomes = ["taken" if taken else "refused" for taken in (seen.written, seen.completed)]
    if seen.completed and seen.last == seen.record:
        outcomes[1] = "taken, and stands"
    successor = "has finished" if seen.finished else "is at work"
    return f"| {' | '.join([package, successor, *outcomes, '; '.join(seen.heard) or 'nothing'])} |"
