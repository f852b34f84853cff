"""A PostgreSQL database that refuses a stale owner, in the same atomic step as its COMMIT."""

from sinkfence.findings import Finding, Report
from sinkfence_postgres.binding import bind
from sinkfence_postgres.doctor import doctor
from sinkfence_postgres.installation import install
from sinkfence_postgres.ledger import clean_ledger, once
from sinkfence_postgres.marks import JobMark, marks
from sinkfence_postgres.protection import protect
from sinkfence_postgres.refusals import refusal
from sinkfence_postgres.rows import fenced_execute
from sinkfence_postgres.sink import PostgresSink
from sinkfence_postgres.transactions import guard, transaction, translated

__all__ = [
    "Finding",
    "JobMark",
    "PostgresSink",
    "Report",
    "bind",
    "clean_ledger",
    "doctor",
    "fenced_execute",
    "guard",
    "install",
    "marks",
    "once",
    "protect",
    "refusal",
    "transaction",
    "translated",
]
