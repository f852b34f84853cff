"""A service's door that refuses a stale owner, and the caller's half."""

from sinkfence_http.dooronly import DoorOnly
from sinkfence_http.fence import Fence
from sinkfence_http.host import HostGate
from sinkfence_http.signer import TokenSigner
from sinkfence_http.verifiers import AuthorityLookup, SignedTokens, TrustedNetwork, VerificationKey

__all__ = [
    "AuthorityLookup",
    "DoorOnly",
    "Fence",
    "HostGate",
    "SignedTokens",
    "TokenSigner",
    "TrustedNetwork",
    "VerificationKey",
]
