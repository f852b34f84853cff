"""A service's door that refuses a stale owner, and the caller's half."""

from sinkfence_http.fence import Fence
from sinkfence_http.signer import TokenSigner
from sinkfence_http.verifiers import SignedTokens, TrustedNetwork, VerificationKey

__all__ = ["Fence", "SignedTokens", "TokenSigner", "TrustedNetwork", "VerificationKey"]
