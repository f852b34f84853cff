"""What is remembered of requests and answers, without a service around it."""

from __future__ import annotations

import base64
import hashlib
import io

import pytest

from sinkfence_http import bodies
from sinkfence_http.answers import Refused
from sinkfence_http.records import Kept, Recording, content_digest, identity
from sinkfence_http.wire import Status, format_status, parse_status

SUM = hashlib.sha256(b"x").digest()
MEMBER = f"sha-256=:{base64.b64encode(SUM).decode()}:"


def test_where_one_part_ends_and_the_next_begins_counts():
    """No two lists of parts have one identity, however their bytes run together."""
    lists = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("ab", "c", "")]
    assert len({identity(*parts) for parts in lists}) == len(lists)
    assert identity("ü") == identity("ü".encode())


@pytest.mark.parametrize(
    ("values", "digest"),
    [
        ([MEMBER], SUM),
        ([f"sha-512=:{'A' * 86}==:, {MEMBER}"], SUM),
        ([f"{MEMBER};p=1, md5=:AAAA:"], SUM),
        ([f"sha-512=:{'A' * 86}==:", MEMBER], SUM),
        ([], None),
        ([""], None),
        ([MEMBER, MEMBER], None),
        (["sha-256=:AAAA:"], None),
        ([f"x{MEMBER}"], None),
        ([MEMBER[:-1]], None),
        ([MEMBER.replace("=:", "=", 1)], None),
    ],
)
def test_a_content_digest(values, digest):
    """One member sha-256 of 32 bytes, among others or alone (RFC 9530)."""
    assert content_digest(values) == digest


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_is_not_kept(status):
    """What asks for a repetition, and what failed."""
    recording = Recording(10)
    recording.start(status, [("Content-Length", "0")])
    assert recording.whole
    assert recording.kept() is None


def test_half_an_answer_is_not_kept():
    """Neither one that was cut off, nor one that never began."""
    assert Recording(10).kept() is None
    recording = Recording(10)
    recording.start(200, [("Content-Length", "3")])
    recording.add(b"ab")
    assert recording.kept() is None
    recording.add(b"c")
    assert Kept.read(recording.kept()).body == b"abc"


@pytest.mark.parametrize(
    ("status", "headers", "parts", "whole"),
    [
        (200, {"Content-Length": "5"}, [b"he", b"llo"], True),
        (200, {"Content-Length": " 5"}, [b"he"], False),
        (200, {"Content-Length": "5"}, [b"hello world"], False),
        (200, {"Content-Length": "0"}, [], True),
        (200, {"Content-Length": "5"}, [], False),
        (200, {}, [], True),
        (200, {}, [b"he"], True),
        (200, {"Transfer-Encoding": "chunked", "Content-Length": "5"}, [b"he"], True),
        (204, {"Content-Length": "5"}, [], True),
        (304, {"Content-Length": "5"}, [], True),
        (404, {"Content-Length": "5"}, [b"he"], False),
        (200, {"Content-Length": "0", "X-Accel-Redirect": "/receipts/7"}, [], False),
        (200, {"X-Sendfile": "/srv/receipts/7"}, [b""], False),
        (200, {"X-Sendfile2": "/srv/receipts/7 0-"}, [], False),
        (200, {"X-Reproxy-URL": "http://files.example/receipts/7"}, [], False),
    ],
)
def test_an_answer_that_ends_is_kept_if_it_is_as_long_as_it_says(status, headers, parts, whole):
    """One that is shorter or longer than its Content-Length has broken off to its caller. In chunks, and
    where there is no body, the length says nothing (RFC 9112, section 6.3). A proxy's file is not seen."""
    recording = Recording(100)
    recording.start(status, headers.items())
    for part in parts:
        recording.add(part)
    recording.end()
    assert recording.whole is whole
    assert (recording.kept() is not None) is whole


def test_a_buffer_that_is_filled_again_is_kept_as_it_was():
    """A stream may hand out the same memory for each part, which is another text by the time of the last."""
    recording, buffer = Recording(100), bytearray(4)
    recording.start(200, [])
    for part in (b"9 eu", b"ros."):
        buffer[:] = part
        recording.add(memoryview(buffer))
    recording.end()
    assert Kept.read(recording.kept()).body == b"9 euros."


def test_an_endless_answer_does_not_fill_the_memory():
    """Above the cap nothing is held, and at its end it is known that it was longer."""
    recording = Recording(10)
    recording.start(200, [])
    for _ in range(100):
        recording.add(b"x" * 4)
    assert recording._parts == []
    recording.end()
    assert Kept.read(recording.kept()).body is None


def test_the_mark_of_a_repetition_is_read():
    """`replayed` and `applied` are parameters of their own, and others are no matter."""
    for status in (Status("accepted", replayed=True), Status("stale-token", 9, applied=True)):
        assert parse_status(format_status(status)) == status
    assert parse_status("accepted;replayedx") == Status("accepted")


def environ(body: bytes, **more) -> dict:
    return {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), **more}


def test_a_body_is_read_and_given_on():
    """Its digest is known, and the handler reads it as if nobody had."""
    request = environ(b"x")
    assert bodies.read(request, 10) == SUM
    assert request["wsgi.input"].read() == b"x"
    chunked = {"wsgi.input": io.BytesIO(b"x"), "wsgi.input_terminated": True}
    assert bodies.read(chunked, 10) == SUM
    assert (chunked["CONTENT_LENGTH"], chunked["wsgi.input"].readline()) == ("1", b"x")
    assert bodies.read({"wsgi.input": io.BytesIO(b"next request")}, 10) == hashlib.sha256(b"").digest()


def test_a_longer_body_is_left_to_the_handler():
    """A declared one isn't touched; of one in chunks, what was read comes before the rest."""
    request = environ(b"x" * 11, HTTP_CONTENT_DIGEST=MEMBER)
    assert bodies.read(request, 10) == SUM
    assert request["wsgi.input"].tell() == 0
    data = bytes(range(256)) * 1000
    chunked = {
        "wsgi.input": io.BytesIO(data),
        "wsgi.input_terminated": True,
        "HTTP_CONTENT_DIGEST": MEMBER,
    }
    assert bodies.read(chunked, 10) == SUM
    assert chunked["wsgi.input"].read() == data


class Broken:
    """A server's input whose client has gone."""

    def read(self, size: int) -> bytes:
        raise OSError("reset")


@pytest.mark.parametrize(
    ("request_", "slug"),
    [
        (environ(b"x", CONTENT_LENGTH="2"), "body-incomplete"),
        (environ(b"x", CONTENT_LENGTH="-1"), "body-incomplete"),
        ({"wsgi.input": Broken(), "CONTENT_LENGTH": "2"}, "body-incomplete"),
        (environ(b"x" * 11), "content-digest-required"),
        ({"wsgi.input": io.BytesIO(b"x" * 11), "wsgi.input_terminated": True}, "content-digest-required"),
        ({"wsgi.input": io.BytesIO(b"x"), "HTTP_TRANSFER_ENCODING": "chunked"}, "content-digest-required"),
        ({"wsgi.input": io.BytesIO(b"x"), "SERVER_PROTOCOL": "HTTP/2"}, "content-digest-required"),
    ],
)
def test_a_body_that_runs_nothing(request_, slug):
    """Cut short, or too long and undeclared."""
    with pytest.raises(Refused) as refused:
        bodies.read(request_, 10)
    assert refused.value.answer.slug == slug
