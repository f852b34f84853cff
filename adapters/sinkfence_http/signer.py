"""A worker's signature under its token: the other half of `SignedTokens`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.verifiers import TYPE, load_jwt, make_jws, prepare_key


@dataclass(frozen=True)
class TokenSigner:
    """Signs tokens for one service: to be passed as `sign=`.

    `lifetime` is in seconds. It bounds how long a leaked header can be used and when a key can be retired;
    the fence doesn't depend on it. Needs PyJWT.

    Raises:
        ValueError: the algorithm, the key or the lifetime doesn't fit; a kid, issuer or audience is empty.
        TypeError: a public key, with which nobody signs; a kid, issuer or audience that is no str.
    """

    key: Any = field(repr=False)
    _: KW_ONLY
    kid: str
    alg: str
    issuer: str
    audience: str
    lifetime: float = 3600
    clock: Callable[[], float] = field(default=time.time, repr=False)
    _encode: Callable[[bytes], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the key, once."""
        if not (math.isfinite(self.lifetime) and self.lifetime >= 1):
            raise ValueError("lifetime is a number of seconds, at least 1")
        for name in ("kid", "issuer", "audience"):
            value: object = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} is a str, not a {type(value).__name__}")
            if not value:
                raise ValueError(f"{name} is empty")
        jwt = load_jwt()
        jws = make_jws(jwt)
        key = prepare_key(jwt, jws, self.key, self.alg)
        if hasattr(key, "verify"):
            raise TypeError("this is a public key, which is for the services: sign with its private half")
        header = {"typ": TYPE, "kid": self.kid}
        encode = partial(jws.encode, key=key, algorithm=self.alg, headers=header)
        object.__setattr__(self, "_encode", encode)

    def __call__(self, token: Token) -> str:
        """Return the token as a compact JWS.

        Raises:
            ValueError: longer than a receiver takes (a long kid, issuer or audience).
        """
        now = int(self.clock())
        claims = {
            "iss": self.issuer,
            "aud": self.audience,
            "job": token.job_id,
            "gen": token.generation,
            "sub": token.owner,
            "iat": now,
            "exp": now + int(self.lifetime),
        }
        signed = self._encode(json.dumps(claims, ensure_ascii=False, separators=(",", ":")).encode())
        if len(signed) > wire.MAX_HEADER:
            raise ValueError(f"a signed token has at most {wire.MAX_HEADER} bytes, this one {len(signed)}")
        return signed
