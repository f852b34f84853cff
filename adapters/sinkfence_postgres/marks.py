"""What the database has seen, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sinkfence.errors import SchemaMismatch
from sinkfence_postgres.plans import Plan, carry_out
from sinkfence_postgres.refusals import Meanings, explained
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:
    from sinkfence_postgres.connections import AnyTx


@dataclass(frozen=True, slots=True)
class JobMark:
    """The highest generation that the database has seen for a job, whose it was, and since when."""

    job_id: str
    generation: int
    owner: str
    raised_at: datetime
    """By the server's clock."""


def marks(conn: AnyTx, prefix: str = "") -> list[JobMark]:
    """Return the marks of all jobs whose id begins with prefix, in bytewise order of the ids.

    For a superuser, or a role that was granted SELECT on sinkfence.mark: writers can't read them. For
    looking on: who writes under a generation that was found here makes a stale owner look new.

    Raises:
        SchemaMismatch: sinkfence is not installed here, or this role may not read the marks.
        ValueError: a NUL in the prefix.
    """
    with explained(MEANINGS):
        return carry_out(conn, reading(prefix))


def reading(prefix: str) -> Plan[list[JobMark]]:
    """Read the marks."""
    if "\0" in prefix:
        raise ValueError(f"a job_id has no NUL: {prefix!r}")
    query = (
        "SELECT job_id, max_generation, owner, raised_at FROM sinkfence.mark"
        " WHERE pg_catalog.starts_with(job_id, :prefix) ORDER BY job_id"
    )
    rows = yield Query(query, {"prefix": prefix}, rows=None)
    return [JobMark(*row) for row in rows]


MEANINGS: Final[Meanings] = {
    "42501": lambda said: SchemaMismatch(  # insufficient_privilege
        f"this role may not read the marks ({said}): "
        "run GRANT SELECT ON sinkfence.mark TO the role that logs in here, as a superuser"
    )
}
