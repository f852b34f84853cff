"""Where the story plays: one invoice, and the addresses of the store, the destinations and the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INVOICE: Final = 42
JOB: Final = f"invoice-{INVOICE}"
"""What must have one writer at a time: its rows, its document and its charge are all leased under one id."""

STEP: Final = "bill May 2026"
"""A step names the occasion: the next owner repeats this very step, and next month's is another one."""

DOCUMENT: Final = f"invoices/{INVOICE}.txt"
"""The object's name in the bucket."""

CHARGE: Final = f"/invoices/{INVOICE}/charge"
"""The service's path."""

AUDIENCE: Final = "charges"
"""Whom the workers sign their tokens for."""

ISSUER: Final = "billing"
"""Who signs: the workers."""

KEY_ID: Final = "billing-2026"


@dataclass(frozen=True, slots=True)
class Bill:
    """What a worker makes of the invoice: a line to insert, to publish, to charge and to record."""

    line: str
    amount: int

    def __str__(self) -> str:
        return f"{self.line}: {self.amount}"


BILLS: Final = {
    "worker A": Bill("3 h at the old rate", 270),
    "worker B": Bill("3 h at the new rate", 300),
}
"""By worker. Their rows don't collide: what refuses worker A's COMMIT is the fence, and no unique index."""


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses and keys, as a worker is given them."""

    leases: str
    """Database of the lease store, a libpq URI."""
    ledger: str
    """Database that the workers write rows to: the first destination."""
    s3: dict[str, str]
    """Address, keys and bucket of the S3 server, the second destination (see `S3Server`)."""
    charges: str
    """Database of the HTTP service: nobody but the service writes to it."""
    service: str
    """URL of the HTTP service, the third destination; for a delayed worker, the network's before it."""
    signing_key: str
    """The workers' private key (PEM). The service has the public half: it verifies tokens, and makes none."""
