"""Who may present a token: without this, any sender could lock everyone out with one huge number."""

from __future__ import annotations

import base64
import hmac
import importlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from sinkfence.tokens import Token
from sinkfence_http import wire
from sinkfence_http.answers import EXPIRED, STALE, UNAUTHENTIC, Refused
from sinkfence_http.functions import check_function

TYPE: Final = "fence+jwt"
ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "PS256", "HS256")
CLAIMS: Final = frozenset({"iss", "aud", "job", "gen", "sub", "iat", "exp"})
_HEADER: Final = frozenset({"alg", "typ", "kid"})
_REMEMBERED: Final = 1024
"""How many verified headers one process remembers."""


class Verifier(Protocol):
    """Says whether a token was issued by somebody who is trusted here."""

    def verify(self, value: str) -> Token:
        """Return the token of a `Fencing-Token` value.

        Raises:
            ValueError: malformed.
            Refused: unauthentic, or its signature has expired.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationKey:
    """A key that is trusted, for one algorithm and one issuer only."""

    key: Any = field(repr=False)
    """A public key (PEM, or an object of `cryptography`); for HS256 at least 32 secret bytes."""
    alg: str
    """EdDSA or ES256; RS256, PS256. HS256 lets every receiver forge: inside one trust domain only."""
    issuer: str


class SignedTokens:
    """Tokens signed by the workers, or by who grants their leases: a compact JWS of `typ` fence+jwt.

    `keys` maps each key id to its `VerificationKey`; two of them side by side is how a key is rotated.
    `audience` is this service's own name: a token for another service is refused. Nothing is fetched,
    and a header that names a key, an address or an extension (jwk, jku, x5u, crit) is refused: RFC 8725,
    sections 3.1, 3.9 and 3.11. Needs PyJWT.

    Raises:
        ValueError: no keys, an algorithm or a key that doesn't fit.
        TypeError: what is no VerificationKey, or an audience that is no str; a private key.
    """

    def __init__(
        self,
        keys: Mapping[str, VerificationKey],
        audience: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for kid, key in keys.items():
            if not isinstance(kid, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a key id is a str, not a {type(kid).__name__}")
            if not isinstance(key, VerificationKey):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError("keys maps each key id to a VerificationKey(key=, alg=, issuer=)")
            if not key.issuer:
                raise ValueError("a VerificationKey names its issuer")
        if not isinstance(audience, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("audience is the name of this service, a str")
        self._jwt = load_jwt()
        self._jws = make_jws(self._jwt)
        self._keys = {
            kid: (key, prepare_key(self._jwt, self._jws, key.key, key.alg)) for kid, key in keys.items()
        }
        if any(hasattr(key, "sign") for _, key in self._keys.values()):
            raise TypeError(
                "this is a private key, which is for the workers alone: give its public half, .public_key()"
            )
        if not self._keys or not audience:
            raise ValueError("SignedTokens needs at least one key, and the name of this service as audience")
        self._audience = audience
        self._clock = clock  # exp is a wall-clock time: it retires keys, and is no part of the fence
        self._verified = lru_cache(_REMEMBERED)(self._verify)

    def verify(self, value: str) -> Token:
        """Return the token, its signature checked once and its `exp` every time."""
        token, expires, _ = self._verified(value)
        if self._clock() >= expires:
            raise Refused(EXPIRED)
        return token

    def issuer(self, value: str) -> str:
        """Return who has issued an authentic token."""
        return self._verified(value)[2]

    def _verify(self, value: str) -> tuple[Token, int, str]:
        compact = wire.parse_signed(value)
        header = _json_object(compact.partition(".")[0])
        kid = header.get("kid")
        known = self._keys.get(kid) if isinstance(kid, str) else None
        if (
            header.keys() != _HEADER
            or known is None
            or header["typ"] != TYPE
            or header["alg"] != known[0].alg
        ):
            raise Refused(UNAUTHENTIC)
        try:
            payload = self._jws.decode(compact, known[1], algorithms=[known[0].alg])
        except self._jwt.PyJWTError:
            raise Refused(UNAUTHENTIC) from None
        claims = _json(payload)
        # A claim that we don't know might narrow what the token allows, so the set is exact.
        if claims.keys() != CLAIMS or claims["iss"] != known[0].issuer or claims["aud"] != self._audience:
            raise Refused(UNAUTHENTIC)
        if type(claims["exp"]) is not int or type(claims["iat"]) is not int:
            raise ValueError("iat and exp are whole seconds")
        token = wire.make_token(claims["job"], claims["gen"], claims["sub"])
        return token, claims["exp"], known[0].issuer


class TrustedNetwork:
    """Unsigned tokens, believed as they come: whoever reaches this service can raise its marks.

    One garbled number locks its job for ever: see docs/decisions/0007 for why no bound is set here.
    """

    def verify(self, value: str) -> Token:
        """Return the token as it was written."""
        return wire.parse_token(value)


class AuthorityLookup:
    """Unsigned tokens; a number that would raise a mark is first looked up where numbers are issued.

    For services whose callers must not hold a signing key. `current(job_id)` asks the *primary* of the lease
    store for (generation, owner) of the job's newest lease; None if there is none. A stale owner is refused
    without it, and not told the mark: anybody can send an unsigned token. The owner is what can't be guessed;
    whoever reads it on the wire may use it, as with any bearer.
    An error of `current` keeps the door shut: 503.

    Raises:
        TypeError: `current` is no plain function; for an async one there is `sinkfence_http.aio`.
    """

    def __init__(self, current: Callable[[str], tuple[int, str | None] | None]) -> None:
        check_function("current", current)
        self._current = current

    def verify(self, value: str) -> Token:
        """Return the token as it was written."""
        return wire.parse_token(value)

    def vouch(self, token: Token) -> None:
        """Let a token raise a mark if it is the newest lease's.

        Raises:
            Refused: it is older, or was never issued.
        """
        compare(token, self._current(token.job_id))


def compare(token: Token, current: tuple[int, str | None] | None) -> None:
    """Raise Refused unless number and owner are those of the newest lease.

    Between asking and raising a newer one may come: this one was authentic, and is stale at the next check.
    """
    if current is not None and token.generation < current[0]:
        raise Refused(STALE)
    owner = (current and current[1]) or ""
    # In equal time: the owner is what a stranger would have to guess.
    same_owner = hmac.compare_digest(token.owner.encode(), owner.encode())
    if current is None or token.generation != current[0] or not same_owner:
        raise Refused(UNAUTHENTIC)


def load_jwt() -> Any:
    """Return PyJWT, or say how to get it."""
    try:
        jwt: Any = importlib.import_module("jwt")
    except ImportError:
        raise ImportError("signed tokens need PyJWT: pip install 'sinkfence[jwt]'") from None
    # Of another distribution's module of this name, and of a PyJWT that is too old.
    if not hasattr(getattr(getattr(jwt, "algorithms", None), "Algorithm", None), "check_key_length"):
        raise ImportError(
            f"signed tokens need PyJWT 2.13 or later; {getattr(jwt, '__file__', jwt)} is an older one, or "
            "the package called jwt: uninstall that, and pip install 'sinkfence[jwt]'"
        )
    return jwt


def make_jws(jwt: Any) -> Any:
    """Return a JWS reader and writer of our algorithms alone."""
    return jwt.PyJWS(list(ALGORITHMS), options={"enforce_minimum_key_length": True})


def prepare_key(jwt: Any, jws: Any, key: Any, alg: str) -> Any:
    """Return the key, parsed once, or a ValueError that says what is wrong with it."""
    if alg not in ALGORITHMS:
        raise ValueError(f"alg must be one of {', '.join(ALGORITHMS)}")
    algorithm = jws.get_algorithm_by_name(alg)
    text = key.encode() if isinstance(key, str) else key
    # PKCS #8, and before that the header of RFC 1421. PyJWT says of either that it is no key.
    if isinstance(text, bytes) and re.search(rb"(?m)^(-----BEGIN ENCRYPTED |Proc-Type: 4,ENCRYPTED)", text):
        raise ValueError(
            "this key is encrypted: read it with its password by load_pem_private_key of cryptography, and "
            "pass what that returns"
        )
    try:
        prepared = algorithm.prepare_key(key)
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise ValueError(f"this key does not fit {alg}: {error}") from None
    if problem := algorithm.check_key_length(prepared):
        raise ValueError(problem)
    return prepared


def _json_object(segment: str) -> dict[str, Any]:
    try:
        text = base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Refused(UNAUTHENTIC) from None
    return _json(text)


def _json(text: bytes) -> dict[str, Any]:
    # Names given twice are refused: two readers that take the first and the last would see two tokens.
    try:
        value: Any = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Refused(UNAUTHENTIC) from None
    if not isinstance(value, dict):
        raise Refused(UNAUTHENTIC)
    return value  # pyright: ignore[reportUnknownVariableType]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name is given twice")
    return names
