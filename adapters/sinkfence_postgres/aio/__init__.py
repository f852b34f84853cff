"""The same names as in `sinkfence_postgres`, for an event loop."""

from sinkfence.findings import Finding, Report
from sinkfence_postgres.aio.sink import PostgresSink
from sinkfence_postgres.aio.transactions import (
    bind,
    clean_ledger,
    fenced_execute,
    guard,
    once,
    transaction,
    translated,
)
from sinkfence_postgres.aio.upkeep import doctor, install, marks, protect
from sinkfence_postgres.marks import JobMark
from sinkfence_postgres.refusals import refusal

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
