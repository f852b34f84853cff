"""The wire format: what is written is read back, and nothing but it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkfence.tokens import MAX_GENERATION, Token
from sinkfence_http import wire

# Whatever an id may hold: everything that has a UTF-8 form, but control characters and U+FFFD.
CHARACTERS = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffd")
TEXTS = st.text(CHARACTERS, min_size=1, max_size=50)
TOKENS = st.builds(Token, TEXTS, st.integers(1, MAX_GENERATION), TEXTS)
# Near misses: pieces that a token is made of, in any order.
PIECES = st.sampled_from(
    ['"', ";", "g=", "o=", "7", ",", " ", "%41", "%", "\\", "a", "é", "\t", "\n", "\x00", "="]
)
RUBBISH = st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=30).map("".join))


@given(TOKENS)
def test_a_token_comes_back_as_it_went(token):
    """Every token is printable ASCII within the limit, and is read back equal."""
    value = wire.format_token(token)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= wire.MAX_HEADER
    assert wire.parse_token(value) == token


@given(RUBBISH)
def test_rubbish_is_a_value_error(text):
    """Whatever comes in, the parsers return something well-formed or raise ValueError."""
    for parse in (wire.parse_token, wire.parse_signed, wire.parse_idempotency_key):
        try:
            result = parse(text)
        except ValueError:
            continue
        assert result
    wire.parse_status(text)


@given(TOKENS, RUBBISH.filter(lambda text: text.strip(" ")))
def test_nothing_may_follow_a_token(token, text):
    """A member followed by anything is refused: a second member above all."""
    with pytest.raises(ValueError):
        wire.parse_token(wire.format_token(token) + text + "x")


@pytest.mark.parametrize(
    "value",
    [
        "",
        '"job"',
        '"job";g=7',
        '"job";o="a"',
        'job;g=7;o="a"',
        "\"job\";g=7;o='a'",
        '"job";g=7;o="a";x=1',
        '"job";g=7;o="a";g=8',
        '"job";g=7;o=a',
        '"job";g="7";o="a"',
        '"job";g=7 ;o="a"',
        '"";g=7;o="a"',
        '"job";g=7;o=""',
        '("job");g=7;o="a"',
        '"job";g=7;o="a",',
        ',"job";g=7;o="a"',
        '"job";g=7;o="a", "job";g=7;o="a"',
        '"job";g=7;o="%"',
        '"job";g=7;o="%zz"',
        '"jo%b";g=7;o="a"',
        '"job";g=7;o="%ff"',
        '"job";g=7;o="%ef%bf%bd"',
        '"j%00b";g=7;o="a"',
        '"j%0ab";g=7;o="a"',
        '"jéb";g=7;o="a"',
        '"j\tb";g=7;o="a"',
        '"j\\ob";g=7;o="a"',
        '"job";G=7;o="a"',
        '"job";g=7;o="a"\n',
        f'"{"a" * 201}";g=7;o="a"',
        f'"{"%41" * 201}";g=7;o="a"',
        f'"job";g=7;o="{"a" * 3000}"',
        *(
            f'"job";g={g};o="a"'
            for g in ("+10", "010", " 10", "1_0", "١٠", "1e1", "10.0", "1" + "0" * 30, "-1", "")
        ),
    ],
)
def test_what_is_not_a_token(value):
    """Malformed members, odd numbers, lost bytes and long values are refused without an echo."""
    with pytest.raises(ValueError) as refused:
        wire.parse_token(value)
    assert "job" not in str(refused.value).replace("job_id", "") or not value


@pytest.mark.parametrize(
    ("value", "job_id"),
    [
        ('"job";g=7;o="a"', "job"),
        ('  "job"; g=7;  o="a"  ', "job"),
        ('"job";o="a";g=7', "job"),
        (r'"j\"o\\b";g=7;o="a"', r'j"o\b'),
        ('"%6Aob";g=7;o="a"', "job"),
        ('"a%2fb%25";g=7;o="a"', "a/b%"),
        ('"%25252f";g=7;o="a"', "%252f"),
    ],
)
def test_other_spellings_of_a_token(value, job_id):
    """What RFC 9651 allows to vary may vary, and percent-encoding is undone exactly once."""
    assert wire.parse_token(value) == Token(job_id, 7, "a")


def test_an_idempotency_key_quoted_or_bare_is_the_same_key():
    """`"k-1"` and `k-1` are one key; keys that a proxy joined, spaces and long ones are none."""
    assert wire.parse_idempotency_key('"k-1"') == wire.parse_idempotency_key(" k-1 ") == "k-1"
    assert wire.parse_idempotency_key(r'"a\"b\\"') == r'a"b\ '.strip()
    assert len(wire.parse_idempotency_key("k" * 255)) == 255
    for value in ("", '""', "a,b", "a, b", '"a", "b"', '"a', "a b", '"a b"', "k" * 256, "ké", "k\n", "k\x7f"):
        with pytest.raises(ValueError):
            wire.parse_idempotency_key(value)


def test_a_status_says_a_word_and_the_mark():
    """A status is read back, parameters of a later version are ignored, and rubbish counts as absent."""
    assert wire.parse_status(wire.format_status(wire.Status("stale-token", 9))) == wire.Status(
        "stale-token", 9
    )
    assert wire.parse_status("accepted") == wire.Status("accepted")
    assert wire.parse_status("stale-token; later=1; current=9") == wire.Status("stale-token", 9)
    for value in (None, "", "accepted, accepted", "Accepted", "stale-token;current=x", "a" * 3000):
        assert wire.parse_status(value) is None
