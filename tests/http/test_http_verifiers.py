"""Who may present a token: forged, confused and borrowed signatures are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import types

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from sinkfence.tokens import Token
from sinkfence_http import SignedTokens, TokenSigner, TrustedNetwork, VerificationKey
from sinkfence_http.answers import Refused
from sinkfence_http.wire import MAX_HEADER, format_token

TOKEN = Token("invoice-42", 7, "a:1")
NOW = 1_800_000_000
CLAIMS = {
    "iss": "billing",
    "aud": "orders",
    "job": "invoice-42",
    "gen": 7,
    "sub": "a:1",
    "iat": NOW,
    "exp": NOW + 3600,
}
HEADER = {"typ": "fence+jwt", "kid": "k1", "alg": "EdDSA"}
PRIVATE = ed25519.Ed25519PrivateKey.generate()
PUBLIC = PRIVATE.public_key()
PEM = PUBLIC.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
SECRET = b"s" * 32


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forge(header: object = HEADER, claims: object = CLAIMS, sign=PRIVATE.sign) -> str:
    """Build a JWS by hand: whatever header, whatever payload, and a signature over them."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)]
    body = ".".join(encode(part) for part in parts)
    return f"{body}.{encode(sign(body.encode()))}"


@pytest.fixture
def verifier() -> SignedTokens:
    key = VerificationKey(key=PEM, alg="EdDSA", issuer="billing")
    return SignedTokens({"k1": key}, "orders", clock=lambda: NOW)


def refused(verifier, value: str) -> str:
    with pytest.raises(Refused) as caught:
        verifier.verify(value)
    return caught.value.answer.slug


@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256", "PS256", "HS256"])
def test_what_was_signed_is_read_back(alg):
    """Each algorithm signs a token that its verifier reads back equal, whatever characters are in it."""
    private = {
        "EdDSA": PRIVATE,
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "RS256": (rsa_key := rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        "PS256": rsa_key,
        "HS256": SECRET,
    }[alg]
    public = private if alg == "HS256" else private.public_key()
    sign = TokenSigner(private, kid="k1", alg=alg, issuer="billing", audience="orders")
    verifier = SignedTokens({"k1": VerificationKey(key=public, alg=alg, issuer="billing")}, "orders")
    for token in (TOKEN, Token("\U0001f600" * 50, 10**15 - 1, '"\\' * 100)):
        assert len(sign(token)) <= MAX_HEADER
        assert verifier.verify(sign(token)) == token
        assert verifier.verify(f" {sign(token)} ") == token


def test_a_signed_token_by_hand_is_accepted(verifier):
    """The forge of these tests makes valid tokens: what it is refused for below is what is wrong with it."""
    assert verifier.verify(forge()) == TOKEN


@pytest.mark.parametrize(
    "header",
    [
        {**HEADER, "alg": "none"},
        {**HEADER, "alg": "None"},
        {**HEADER, "alg": "HS256"},
        {**HEADER, "alg": "ES256"},
        {**HEADER, "alg": ["EdDSA"]},
        {**HEADER, "kid": "k2"},
        {**HEADER, "kid": ["k1"]},
        {**HEADER, "kid": None},
        {**HEADER, "typ": "JWT"},
        {**HEADER, "typ": "at+jwt"},
        {**HEADER, "crit": ["x"], "x": 1},
        {**HEADER, "b64": False, "crit": ["b64"]},
        {**HEADER, "b64": False},
        {**HEADER, "jku": "https://example.com/keys"},
        {**HEADER, "x5u": "https://example.com/keys"},
        {**HEADER, "jwk": {"kty": "OKP"}},
        {**HEADER, "cty": "JWT"},
        {"typ": "fence+jwt", "alg": "EdDSA"},
        {},
        [],
        b"null",
        b"{",
        b"[" * 500,
        b'{"typ":"fence+jwt","kid":"k1","alg":"none","alg":"EdDSA"}',
    ],
    ids=str,
)
def test_a_header_that_confuses_is_refused(verifier, header):
    """alg none and others, unknown kid, typ, crit, b64, key addresses, names given twice: unauthentic."""
    assert refused(verifier, forge(header)) == "unauthentic-token"


def test_a_public_key_is_no_secret(verifier):
    """HS256 under the public key as its secret, the classic confusion, is refused."""
    value = forge({**HEADER, "alg": "HS256"}, sign=lambda data: hmac.digest(PEM, data, hashlib.sha256))
    assert refused(verifier, value) == "unauthentic-token"
    with pytest.raises(ValueError):
        SignedTokens({"k1": VerificationKey(key=PEM, alg="HS256", issuer="billing")}, "orders")


@pytest.mark.parametrize(
    "claims",
    [
        {**CLAIMS, "aud": "payments"},
        {**CLAIMS, "aud": ["orders"]},
        {**CLAIMS, "aud": ["orders", "payments"]},
        {**CLAIMS, "iss": "stranger"},
        {**CLAIMS, "iss": None},
        {**CLAIMS, "nbf": NOW + 10_000},
        {name: value for name, value in CLAIMS.items() if name != "exp"},
        {name: value for name, value in CLAIMS.items() if name != "sub"},
        b'{"iss":"billing","aud":"orders","job":"x","gen":7,"gen":8,"sub":"a","iat":1,"exp":9999999999}',
        b"not json",
        [],
    ],
    ids=str,
)
def test_claims_for_another_place_are_refused(verifier, claims):
    """A token for another service, by another issuer, with claims missing, doubled or unknown is refused."""
    assert refused(verifier, forge(claims=claims)) == "unauthentic-token"


@pytest.mark.parametrize(
    "change",
    [
        {"gen": 10**15},
        {"gen": 10**400},
        {"gen": 0},
        {"gen": -1},
        {"gen": 7.0},
        {"gen": 1e30},
        {"gen": True},
        {"gen": "7"},
        {"gen": None},
        {"job": ""},
        {"job": "a\nb"},
        {"job": "a\ufffdb"},
        {"job": 7},
        {"sub": "x" * 201},
        {"exp": str(NOW + 1)},
        {"exp": float("inf")},
        {"exp": True},
        {"iat": None},
    ],
    ids=str,
)
def test_signed_nonsense_is_malformed(verifier, change):
    """What an issuer signed and is no token is a ValueError: 400."""
    with pytest.raises(ValueError):
        verifier.verify(forge(claims={**CLAIMS, **change}))


def test_a_changed_byte_is_refused(verifier):
    """No byte of a token can be changed."""
    value = forge()
    for position in range(0, len(value), 7):
        for character in "A.+/=-":
            changed = value[:position] + character + value[position + 1 :]
            if changed == value:
                continue
            with pytest.raises((Refused, ValueError)):
                verifier.verify(changed)


def test_the_signature_of_another_key_is_refused(verifier):
    """A valid token of an untrusted key is unauthentic."""
    other = ed25519.Ed25519PrivateKey.generate()
    assert refused(verifier, forge(sign=other.sign)) == "unauthentic-token"
    assert refused(verifier, forge(sign=lambda data: b"")) == "unauthentic-token"


def test_expiry_is_looked_at_every_time():
    """A header that was verified before is refused once its exp has passed."""
    now = [NOW]
    key = VerificationKey(key=PUBLIC, alg="EdDSA", issuer="billing")
    verifier = SignedTokens({"k1": key}, "orders", clock=lambda: now[0])
    value = forge()
    assert verifier.verify(value) == verifier.verify(value) == TOKEN
    now[0] = NOW + 3600
    assert refused(verifier, value) == "token-expired"


def test_keys_rotate_side_by_side():
    """Two keys are trusted at a time, each for its own issuer only."""
    other = ed25519.Ed25519PrivateKey.generate()
    verifier = SignedTokens(
        {
            "k1": VerificationKey(key=PUBLIC, alg="EdDSA", issuer="billing"),
            "k2": VerificationKey(key=other.public_key(), alg="EdDSA", issuer="shipping"),
        },
        "orders",
        clock=lambda: NOW,
    )
    assert verifier.verify(forge()) == TOKEN
    assert verifier.verify(forge({**HEADER, "kid": "k2"}, {**CLAIMS, "iss": "shipping"}, other.sign)) == TOKEN
    assert refused(verifier, forge({**HEADER, "kid": "k2"}, CLAIMS, other.sign)) == "unauthentic-token"


def test_a_signature_lives_as_long_as_its_signer_says():
    """With lifetime=600 it is taken for ten minutes, and then it has expired."""
    sign = TokenSigner(
        PRIVATE, kid="k1", alg="EdDSA", issuer="billing", audience="orders", lifetime=600, clock=lambda: NOW
    )
    key = VerificationKey(key=PUBLIC, alg="EdDSA", issuer="billing")
    in_time, late = (SignedTokens({"k1": key}, "orders", clock=lambda at=NOW + age: at) for age in (599, 600))
    assert in_time.verify(sign(TOKEN)) == TOKEN
    assert refused(late, sign(TOKEN)) == "token-expired"


def test_the_kind_of_token_is_the_door_s_choice(verifier):
    """An unsigned token doesn't pass where signatures are asked for, nor the other way round."""
    with pytest.raises(ValueError):
        verifier.verify(format_token(TOKEN))
    with pytest.raises(ValueError):
        TrustedNetwork().verify(forge())


def test_what_can_not_be_a_verifier_says_so():
    """No keys, a short secret, an unknown algorithm, a key of another kind: refused at construction."""
    key = VerificationKey(key=PUBLIC, alg="EdDSA", issuer="billing")
    assert "ed25519" not in repr(key).lower()
    for keys, audience in (
        ({}, "orders"),
        ({"k1": key}, ""),
        ({"k1": VerificationKey(key=b"short", alg="HS256", issuer="b")}, "orders"),
        ({"k1": VerificationKey(key=PUBLIC, alg="none", issuer="b")}, "orders"),
        ({"k1": VerificationKey(key=PUBLIC, alg="ES256", issuer="b")}, "orders"),
        ({"k1": VerificationKey(key=b"rubbish", alg="EdDSA", issuer="b")}, "orders"),
    ):
        with pytest.raises(ValueError):
            SignedTokens(keys, audience)
    for lifetime in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError):
            TokenSigner(PRIVATE, kid="k", alg="EdDSA", issuer="b", audience="o", lifetime=lifetime)
    with pytest.raises(ValueError):
        TokenSigner(PRIVATE, kid="k" * 2000, alg="EdDSA", issuer="b", audience="o")(TOKEN)


@pytest.mark.parametrize("names", [(), ("PyJWS", "algorithms")], ids=["another package", "PyJWT 2.8"])
def test_a_module_of_that_name_that_will_not_do_is_called_one(monkeypatch, names):
    """An ImportError that says which it is and what to install, and no AttributeError out of the middle."""
    module = types.ModuleType("jwt")
    module.__file__ = "/srv/app/jwt/__init__.py"
    for name in names:
        setattr(module, name, types.SimpleNamespace(Algorithm=object))
    monkeypatch.setitem(sys.modules, "jwt", module)
    with pytest.raises(ImportError, match=r"/srv/app/jwt/.*pip install 'sinkfence\[jwt\]'"):
        SignedTokens({"k1": VerificationKey(key=PUBLIC, alg="EdDSA", issuer="billing")}, "orders")
    with pytest.raises(ImportError, match=r"2\.13"):
        TokenSigner(PRIVATE, kid="k", alg="EdDSA", issuer="b", audience="o")


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
def test_an_encrypted_key_is_called_one(form):
    """Of either form of PEM, as bytes or as str: what is missing is its password."""
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        getattr(serialization.PrivateFormat, form),
        serialization.BestAvailableEncryption(b"secret"),
    )
    for key in (pem, pem.decode()):
        with pytest.raises(ValueError, match="is encrypted"):
            TokenSigner(key, kid="k", alg="ES256", issuer="b", audience="o")


@pytest.mark.parametrize("name", ["kid", "issuer", "audience"])
def test_a_signer_names_its_key_its_issuer_and_its_service(name):
    """Each by a str that isn't empty: no service takes another."""
    names = {"kid": "k", "issuer": "b", "audience": "o"}
    for value in (5, ["o"], None, b"o"):
        with pytest.raises(TypeError, match=f"{name} is a str"):
            TokenSigner(PRIVATE, alg="EdDSA", **{**names, name: value})
    with pytest.raises(ValueError, match=f"{name} is empty"):
        TokenSigner(PRIVATE, alg="EdDSA", **{**names, name: ""})
    with pytest.raises(TypeError, match="key id is a str"):
        SignedTokens({5: VerificationKey(key=PEM, alg="EdDSA", issuer="b")}, "o")


def test_another_library_reads_our_tokens():
    """A signed token is a plain JWT: any library reads it with the public key."""
    sign = TokenSigner(PRIVATE, kid="k1", alg="EdDSA", issuer="billing", audience="orders", clock=lambda: NOW)
    options = {"verify_exp": False, "verify_iat": False}
    assert jwt.decode(sign(TOKEN), PUBLIC, ["EdDSA"], audience="orders", options=options) == CLAIMS
    assert jwt.get_unverified_header(sign(TOKEN)) == HEADER


def test_the_issuer_of_a_token_is_its_key_s(verifier):
    """Who has signed is told of an authentic token, and refused of another."""
    assert verifier.issuer(forge()) == "billing"
    with pytest.raises(Refused):
        verifier.issuer(forge(sign=ed25519.Ed25519PrivateKey.generate().sign))


def test_what_is_no_key_issuer_or_audience():
    """It is refused when the service starts, with what is needed instead."""
    good = VerificationKey(key=b"x" * 32, alg="HS256", issuer="workers")
    nameless = VerificationKey(key=b"x" * 32, alg="HS256", issuer="")
    with pytest.raises(TypeError, match="VerificationKey"):
        SignedTokens({"a": "pem"}, "orders")
    with pytest.raises(ValueError, match="issuer"):
        SignedTokens({"a": nameless}, "orders")
    with pytest.raises(TypeError, match="audience"):
        SignedTokens({"a": good}, 7)


@pytest.mark.parametrize("form", ["key", "PEM"])
@pytest.mark.parametrize("alg", ["EdDSA", "ES256", "RS256", "PS256"])
def test_the_wrong_half_of_a_key_is_refused_where_it_is_given(alg, form):
    """A service must not hold what signs, and with the public half nobody can: said at the start."""
    private = {
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    }.get(alg, lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048))()
    public = private.public_key()
    if form == "PEM":
        pem, no = serialization.Encoding.PEM, serialization.NoEncryption()
        public = public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        private = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, no)
    with pytest.raises(TypeError, match=r"private key.*public_key\(\)"):
        SignedTokens({"a": VerificationKey(key=private, alg=alg, issuer="workers")}, "orders")
    with pytest.raises(TypeError, match="public key"):
        TokenSigner(public, kid="a", alg=alg, issuer="workers", audience="orders")
