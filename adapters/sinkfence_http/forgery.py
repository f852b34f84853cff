"""Tokens that no service may believe, made of an authentic one."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import replace
from typing import Any

from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.calls import Sign
from sinkfence_http.signer import TokenSigner
from sinkfence_http.verifiers import ALGORITHMS, load_jwt, make_jws


def forged(sign: Sign, token: Token) -> dict[str, str]:
    """Return a `Fencing-Token` value for each way to forge one.

    All are for the token's own job and generation: where one is believed, no mark goes beyond it.

    Raises:
        ValueError: what `sign` makes is no compact JWS.
    """
    value = sign(token)
    try:
        header, payload, signature = value.split(".")
        head: dict[str, Any] = json.loads(_decoded(header))
        claims: dict[str, Any] = json.loads(_decoded(payload))
    except ValueError:
        raise ValueError("sign= makes compact JWS tokens, as a TokenSigner does") from None
    # RFC 8725, section 2.1: what a verifier must not fall for.
    ways = {
        "unsigned": wire.format_token(token),
        "alg none": f"{_encoded({**head, 'alg': 'none'})}.{payload}.",
        "other claims": f"{header}.{_encoded({**claims, 'exp': claims.get('exp', 0) + 1})}.{signature}",
    }
    if head.get("alg") in ALGORITHMS:
        jws = make_jws(load_jwt())
        named = {name: head[name] for name in ("typ", "kid") if name in head}
        ways["another's key"] = jws.encode(
            _decoded(payload), _other_key(head["alg"]), head["alg"], headers=named
        )
    return ways


def altered(sign: Sign, token: Token) -> dict[str, str]:
    """Return a `Fencing-Token` value for each way to use the workers' own key for what is not this service's.

    What is signed by another function than a `TokenSigner` can't be altered: there are none.
    """
    if not isinstance(sign, TokenSigner):
        return {}
    name = f"sinkfence-doctor-{secrets.token_hex(8)}"
    week = 7 * 24 * 3600  # longer than any lifetime that is usual
    ways = {
        "another audience": replace(sign, audience=name),
        "another issuer": replace(sign, issuer=name),
        "another kid": replace(sign, kid=name),
        "expired": replace(sign, lifetime=1, clock=lambda: sign.clock() - week),
    }
    return {way: twin(token) for way, twin in ways.items()}


def _other_key(alg: str) -> Any:
    """Return a new key for an algorithm, which nobody can know."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match alg:
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "HS256":
            return secrets.token_bytes(32)
        case _:
            return rsa.generate_private_key(65537, 2048)


def _decoded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def _encoded(value: dict[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
