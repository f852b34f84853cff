"""A PostgreSQL database that refuses a stale owner, in the same atomic step as its COMMIT."""

from sinkfence_postgres.installation import install
from sinkfence_postgres.ledger import clean_ledger, once
from sinkfence_postgres.refusals import refusal
from sinkfence_postgres.sink import PostgresSink
from sinkfence_postgres.transactions import guard, transaction, translated

__all__ = [
    "PostgresSink",
    "clean_ledger",
    "guard",
    "install",
    "once",
    "refusal",
    "transaction",
    "translated",
]
