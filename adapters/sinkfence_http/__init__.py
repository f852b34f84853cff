"""A service's door that refuses a stale owner, and the caller's half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sinkfence.findings import Finding, Report
from sinkfence_http.answers import Refused
from sinkfence_http.doctor import doctor
from sinkfence_http.dooronly import DoorOnly
from sinkfence_http.fence import Fence
from sinkfence_http.signer import TokenSigner
from sinkfence_http.verifiers import (
    AuthorityLookup,
    SignedTokens,
    TrustedNetwork,
    VerificationKey,
    Verifier,
)

if TYPE_CHECKING:
    from sinkfence_http.host import HostGate

__all__ = [
    "AuthorityLookup",
    "DoorOnly",
    "Fence",
    "Finding",
    "HostGate",
    "Refused",
    "Report",
    "SignedTokens",
    "TokenSigner",
    "TrustedNetwork",
    "VerificationKey",
    "Verifier",
    "doctor",
]


def __getattr__(name: str) -> Any:
    # Loaded where it is used: it locks files by fcntl, which Windows lacks, and callers work there as well.
    if name == "HostGate":
        from sinkfence_http.host import HostGate

        return HostGate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
