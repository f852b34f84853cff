"""What our parser takes, an independent implementation of RFC 9651 reads alike."""

from __future__ import annotations

import random
import re
from typing import Any
from urllib.parse import unquote

import http_sf
import pytest
from http_sf.types import Token as SfToken
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinkfence.tokens import Token
from sinkfence_http import wire

TEXTS = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffd"), min_size=1, max_size=40
)
TOKENS = st.builds(Token, TEXTS, st.integers(1, 10**15 - 1), TEXTS)

# The pieces of a member, well-formed and not: most rows of them are nearly a token.
JOBS = st.sampled_from(
    [
        '"job"',
        '"a%20b"',
        '"a\\"b"',
        '"a\\\\b"',
        '"\\a"',
        '"a,b"',
        '"a;b"',
        "job",
        '""',
        '"a',
        "'a'",
        '"é"',
        "?1",
    ]
)
GENERATIONS = st.sampled_from(
    ["8", "08", "+8", "-8", "8.0", "1e3", "999999999999999", "1000000000000000", "", "8 ", " 8", '"8"', "٨"]
)
GAPS = st.sampled_from([";", "; ", " ;", ";\t", ";;", ",", ", ", ""])
EDGES = st.sampled_from(
    ["", "", "", " ", "  ", "\t", ",", ', "job";g=9;o="b"', ";", ";x", ";x=1", ";g=9", "\x00"]
)


@st.composite
def nearly(draw: st.DrawFn) -> str:
    """A member, or something that looks like one."""
    parameters = draw(st.permutations([f"g={draw(GENERATIONS)}", f"o={draw(JOBS)}"]))
    text = draw(JOBS) + "".join(draw(GAPS) + parameter for parameter in parameters)
    return draw(EDGES) + text + draw(EDGES)


def independent(value: str) -> list[tuple[Any, dict[str, Any]]]:
    """The members of a List, by the other implementation."""
    parsed: Any = http_sf.parse(value.encode("latin-1", "replace"), tltype="list")
    return [(item[0], dict(item[1])) for item in parsed]


@given(st.one_of(nearly(), TOKENS.map(wire.format_token)))
@example('"job";g=8;o="owner"')
@settings(max_examples=250)
def test_an_accepted_token_is_the_same_one_to_others(value):
    """Exactly one String member with the Integer g and the String o: nobody sees another token."""
    try:
        token = wire.parse_token(value)
    except ValueError:
        return
    [(job, parameters)] = independent(value)
    assert unquote(job, errors="strict") == token.job_id
    assert parameters == {"g": token.generation, "o": parameters["o"]}
    assert unquote(parameters["o"], errors="strict") == token.owner


@given(
    st.from_regex(
        re.compile(r"[A-Za-z0-9_*.-]{1,20}(\.[A-Za-z0-9_-]{0,20}){0,3}[ ,;=]?", re.ASCII), fullmatch=True
    )
)
def test_an_accepted_signature_is_one_token_to_others(value):
    """A compact JWS is one sf-token, without parameters."""
    try:
        compact = wire.parse_signed(value)
    except ValueError:
        return
    [(item, parameters)] = independent(value)
    assert isinstance(item, SfToken)
    assert str(item) == compact
    assert parameters == {}


@pytest.mark.parametrize("seed", range(2))
def test_a_byte_that_is_changed_makes_no_other_reading(seed):
    """Valid members with bytes changed, left out and doubled: refused, or read alike by both."""
    chance = random.Random(seed)
    whole = wire.format_token(Token("reports/latest, daily", 2**33, 'worker "7":ab'))
    agreed = 0
    for _ in range(1000):
        text = list(whole)
        for _ in range(chance.randint(1, 2)):
            place = chance.randrange(len(text))
            text[place] = chance.choice(
                ["", text[place] * 2, chr(chance.randrange(0x20, 0x7F)), '"', ";", ",", "\\"]
            )
        value = "".join(text)
        try:
            token = wire.parse_token(value)
        except ValueError:
            continue
        [(job, parameters)] = independent(value)
        assert (unquote(job), parameters["g"], unquote(parameters["o"])) == (
            token.job_id,
            token.generation,
            token.owner,
        )
        assert parameters.keys() == {"g", "o"}
        agreed += 1
    assert agreed > 150
