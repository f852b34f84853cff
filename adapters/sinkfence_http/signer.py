"""A worker's signature under its token: the other half of `SignedTokens`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.verifiers import TYPE, load_jwt, make_jws, prepare_key


class TokenSigner:
    """Signs tokens for one service: to be passed as `sign=`.

    `lifetime` is in seconds. It bounds how long a leaked header can be used and when a key can be retired;
    the fence doesn't depend on it. Needs PyJWT.

    Raises:
        ValueError: the algorithm, the key or the lifetime doesn't fit.
        TypeError: a public key, with which nobody signs.
    """

    def __init__(
        self,
        key: Any,
        *,
        kid: str,
        alg: str,
        issuer: str,
        audience: str,
        lifetime: float = 3600,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (math.isfinite(lifetime) and lifetime >= 1):
            raise ValueError("lifetime is a number of seconds, at least 1")
        jwt = load_jwt()
        self._jws = make_jws(jwt)
        self._key = prepare_key(jwt, self._jws, key, alg)
        if hasattr(self._key, "verify"):
            raise TypeError("this is a public key, which is for the services: sign with its private half")
        self._alg = alg
        self._header = {"typ": TYPE, "kid": kid}
        self._names = {"iss": issuer, "aud": audience}
        self._lifetime = int(lifetime)
        self._clock = clock

    def __call__(self, token: Token) -> str:
        """Return the token as a compact JWS.

        Raises:
            ValueError: longer than a receiver takes (a long kid, issuer or audience).
        """
        return self._signed(token)

    def _signed(
        self, token: Token, kid: str = "", age: int = 0, names: Mapping[str, str] | None = None
    ) -> str:
        now = int(self._clock()) - age
        claims = {
            **self._names,
            **(names or {}),
            "job": token.job_id,
            "gen": token.generation,
            "sub": token.owner,
            "iat": now,
            "exp": now + (self._lifetime if not age else 1),
        }
        payload = json.dumps(claims, ensure_ascii=False, separators=(",", ":")).encode()
        header = {**self._header, "kid": kid} if kid else self._header
        signed: str = self._jws.encode(payload, self._key, self._alg, headers=header)
        if len(signed) > wire.MAX_HEADER:
            raise ValueError(f"a signed token has at most {wire.MAX_HEADER} bytes, this one {len(signed)}")
        return signed


def signed_with(signer: TokenSigner, token: Token, *, kid: str = "", age: int = 0, **names: str) -> str:
    """Return a token signed `age` seconds ago, under another kid, issuer (`iss`) or audience (`aud`).

    Raises:
        ValueError: as the signer does.
    """
    return signer._signed(token, kid, age, names)  # pyright: ignore[reportPrivateUsage]
