"""The register's format: what is written is read, also by the documented reader, and nothing else is."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkfence.errors import SchemaMismatch
from sinkfence.tokens import Token
from sinkfence_s3 import plan
from sinkfence_s3.data import Data
from sinkfence_s3.register import MAGIC, MAX_HEADER, MAX_INLINE, Content, decode, encode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "s3-object-format.md"

texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=50)
tokens = st.builds(Token, texts, st.integers(1, 10**15 - 1), texts)


def written(token, body, *, seen=None, tag="sf1-x", write_id="w1", content_type="text/plain"):
    wanted = Content(body, content_type, hashlib.sha256(body).hexdigest(), 0)
    return plan.put(token, seen, write_id, wanted, tag=tag, expect=None).register


@pytest.fixture(scope="module")
def documented():
    """The reader that the reference page prints, as it stands there."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 24
    names = {}
    exec(code, names)
    return lambda frame, data={}: names["read_register"]((data | {"k": frame}).__getitem__, "k")


@given(token=tokens, body=st.binary(max_size=200))
def test_what_is_written_is_read(token, body):
    """Any token and any body, through bytes and back."""
    register = written(token, body)
    assert decode(encode(register), "k") == register
    armed = plan.arm(token, None, "w2").register
    assert decode(encode(armed), "k") == armed


@given(token=tokens, body=st.binary(max_size=200))
def test_the_documented_reader_reads_it(documented, token, body):
    """A reader in another language finds the same content and mark by following the page."""
    header, content = documented(encode(written(token, body)))
    assert content == body
    assert (header["job_id"], header["generation"], header["owner"]) == (
        token.job_id,
        token.generation,
        token.owner,
    )
    assert documented(encode(plan.arm(token, None, "w").register))[1] is None


def test_a_real_object_is_read_by_the_documented_reader(documented, fenced, s3_client, bucket_name, prefix):
    """What lies in the bucket, fetched by a bare GET, is what the page describes, field by field."""
    fenced.object("r").arm(Token("j", 1, "a:1"))
    written = fenced.object("r").put(b"x", Token("j", 2, "b:1"), step="s", content_type="text/plain")
    response = s3_client.get_object(Bucket=bucket_name, Key=prefix + "r")
    header, content = documented(response["Body"].read())
    assert content == b"x"
    assert response["ContentType"] == "application/vnd.sinkfence.register"
    key = Token("j", 1, "a:1").key("s")
    digest = hashlib.sha256(b"x").hexdigest()
    assert [entry[:1] + entry[2:] for entry in header.pop("ring")] == [
        [1, None, 1, None],
        [2, key, 2, digest],
    ]
    assert re.fullmatch("[0-9a-f]{32}", header.pop("write_id"))
    assert header.pop("previous_etag").startswith('"')
    assert header == {
        "format": 1,
        "job_id": "j",
        "generation": 2,
        "owner": "b:1",
        "seq": written.seq,
        "tag": key,
        "content": "inline",
        "content_seq": 2,
        "content_type": "text/plain",
        "size": 1,
        "sha256": digest,
    }


def test_the_largest_register_fits(documented):
    """A full ring of the longest entries, the longest names and the largest content stay in the limits."""
    seen, register = None, None
    for number in range(70):
        token = Token('"' * 200, 10**15 - 1, "\\" * 200)
        register = written(
            token, b"x", seen=seen, tag=f"{number:t>64}", write_id=f"{number:064}", content_type='"' * 255
        )
        seen = plan.Seen(register, '"' * 200)
    content = replace(
        register.content, body=b"x" * MAX_INLINE, sha256=hashlib.sha256(b"x" * MAX_INLINE).hexdigest()
    )
    register = replace(register, content=content)
    frame = encode(register)
    assert int.from_bytes(frame[8:12], "big") < MAX_HEADER / 3
    assert decode(frame, "k") == register
    assert len(register.ring) == 64


OUTSIDE = Content(Data("7-w", 1_100_000), "text/plain", "0" * 64, 0)


@given(token=tokens, body=st.binary(max_size=200))
def test_a_register_that_names_data_is_read(documented, token, body):
    """Its frame ends with the header; a reader finds where the content is, and what it must be."""
    name = f"{token.generation}-w"
    content = Content(Data(name, len(body)), None, hashlib.sha256(body).hexdigest(), 0)
    register = plan.put(token, None, "w1", content, tag=None, expect=None).register
    assert decode(encode(register), "k") == register
    assert documented(encode(register), {f"k.d/{name}": body})[1] == body
    with pytest.raises(ValueError, match="damaged"):
        documented(encode(register), {f"k.d/{name}": body + b"x"})


def test_a_deleted_object_is_one_without_content(documented, fenced, s3_client, bucket_name, prefix):
    """A tombstone is what an armed register is, and its write has no digest in the ring."""
    token = Token("j", 2, "b:1")
    fenced.object("r").put(b"x", token)
    fenced.object("r").delete(token, step="retire")
    frame = s3_client.get_object(Bucket=bucket_name, Key=prefix + "r")["Body"].read()
    header, inline = documented(frame)
    assert (header["content"], header["content_seq"], header["size"], inline) == ("none", 0, 0, None)
    assert header["ring"][-1][2:] == [token.key("retire"), 2, None]


def test_no_two_registers_are_the_same_bytes():
    """Equal content under the same token still gives other bytes: the write id is in them."""
    token = Token("j", 1, "a:1")
    assert encode(written(token, b"x", write_id="w1")) != encode(written(token, b"x", write_id="w2"))


def damaged(register=None, **changes):
    frame = encode(register or written(Token("j", 7, "a:1"), b"x"))
    end = 12 + int.from_bytes(frame[8:12], "big")
    header = json.loads(frame[12:end]) | changes
    header = {name: value for name, value in header.items() if value is not ...}
    encoded = json.dumps(header).encode()
    return MAGIC + len(encoded).to_bytes(4, "big") + encoded + frame[end:]


@pytest.mark.parametrize(
    "changes",
    [
        *({name: ...} for name in json.loads(damaged()[12:-1])),
        {"job_id": ""},
        {"job_id": "x" * 201},
        {"job_id": "a\nb"},
        {"job_id": 5},
        {"owner": None},
        {"owner": "\ud800"},
        *({"generation": each} for each in (0, -1, True, 1.0, "7", None, 10**15, 8)),
        *({"seq": each} for each in (0, 2, True, None, "1")),
        {"write_id": "other"},
        {"write_id": ""},
        {"tag": "other"},
        {"content": "none"},
        {"content_seq": 2},
        {"content_seq": -1},
        {"content_type": "a\nb"},
        {"content_type": 5},
        {"size": 2},
        {"sha256": "0" * 64},
        {"previous_etag": 5},
        {"ring": []},
        {"ring": {}},
        {"ring": [[1, "w1", "sf1-x", 7]]},
        {"ring": ["wwwww"]},
        {"ring": [[1, "w1", "sf1-x", 7, "bad digest"]]},
        {"ring": [[0, "w0", None, 7, None], [2, "w1", "sf1-x", 7, "d"]]},
        {"ring": [[1, "w1", "sf1-x", 7, "d"]] * 65},
    ],
    ids=repr,
)
def test_a_header_that_breaks_a_rule_is_refused(changes):
    """Missing, mistyped, out of range, or contradicting itself."""
    with pytest.raises(SchemaMismatch, match="Nothing was overwritten"):
        decode(damaged(**changes), "k")


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"data": each}
            for each in (..., None, 7, "", "7", "7-", "-w", "0-w", "07-w", "8-w", "x-w", "7-a/b")
        ),
        {"data": "1234567890123456-w"},
        {"data": "7-" + "w" * 65},
        *({"sha256": each} for each in (..., None, 5, "0" * 63, "F" * 64)),
        *({"size": each} for each in (..., None, -1, True, "1", 10**15)),
        {"content_seq": 0},
        {"content": "inline"},
        {"content": "none"},
    ],
    ids=repr,
)
def test_a_name_of_data_that_breaks_a_rule_is_refused(changes):
    """No path out of the folder, no data of a generation that has not been, no digest that is none."""
    register = plan.put(Token("j", 7, "a:1"), None, "w1", OUTSIDE, tag="sf1-x", expect=None).register
    assert decode(damaged(register), "k") == register
    with pytest.raises(SchemaMismatch, match="Nothing was overwritten"):
        decode(damaged(register, **changes), "k")
    with pytest.raises(SchemaMismatch):
        decode(damaged(register) + b"x", "k")


@pytest.mark.parametrize("changes", [{"format": 2}, {"format": 99, "ring": "new"}, {"content": "elsewhere"}])
def test_a_later_format_asks_for_an_upgrade(changes):
    """Decided before any other field, for a later format may have changed them all."""
    with pytest.raises(SchemaMismatch, match="upgrade"):
        decode(damaged(**changes), "k")


@given(st.data())
def test_no_bytes_do_more_than_be_refused(data):
    """Cut, padded, flipped or random: a register of this content, or SchemaMismatch, and no other error."""
    frame = bytearray(encode(written(Token("j", 7, "a:1"), b"content")))
    kind = data.draw(st.sampled_from(["cut", "pad", "flip", "random", "nested"]))
    if kind == "cut":
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    elif kind == "pad":
        frame += data.draw(st.binary(min_size=1, max_size=9))
    elif kind == "flip":
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "random":
        frame = MAGIC + data.draw(st.binary(max_size=60))
    else:
        frame = MAGIC + (60_000).to_bytes(4, "big") + b"[" * 60_000
    try:
        register = decode(bytes(frame), "k")
    except SchemaMismatch:
        return
    assert register.content.body == b"content"
