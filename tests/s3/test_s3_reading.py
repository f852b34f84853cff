"""A reader gives nothing unverified after it has said so, and goes on where it stood."""

import io
import os
import sys

import pytest
from botocore.exceptions import BotoCoreError

from sinkfence.errors import SchemaMismatch
from sinkfence.tokens import Token
from sinkfence_s3 import streams

A = Token("j", 3_000_000_007, "a:1")
LONG = b"".join(b"%07d\n" % number for number in range(300_000))


@pytest.fixture
def data(fenced, s3_client, bucket_name):
    """The data object of r, to be changed by other means."""
    fenced.object("r").put(LONG, A)
    return {"Bucket": bucket_name, "Key": fenced.object("r").stat().data_key}


def test_damage_is_told_again_whenever_it_is_read_on(fenced, s3_client, data):
    """The bytes whose SHA-256 was found to be another are not given to who tries once more."""
    s3_client.put_object(**data, Body=b"x" * len(LONG))
    with fenced.object("r").get() as file:
        for _ in range(2):
            with pytest.raises(SchemaMismatch):
                file.read()
            file.seek(0)
        with pytest.raises(SchemaMismatch):
            file.read(10)
    with fenced.object("r").get() as file:
        with pytest.raises(SchemaMismatch):
            while file.read(100_000):
                pass
        for _ in range(3):
            with pytest.raises(SchemaMismatch):
                file.read(100_000)


def test_what_is_read_once_more_is_verified_once_more(fenced, s3_client, data):
    """The first time it was whole; it was changed before the second."""
    with fenced.object("r").get() as file:
        assert file.read() == LONG
        s3_client.put_object(**data, Body=b"x" * len(LONG))
        file.seek(0)
        with pytest.raises(SchemaMismatch):
            file.read()


@pytest.mark.parametrize(
    "how", ["read", "readinto", "readline", "readlines", "readlines to a hint", "readinto1"]
)
def test_after_a_read_that_failed_the_file_stands_where_it_stood(fenced, through, proxy, how):
    """Some of it had come by then: who catches the error and reads on misses nothing."""
    body = os.urandom(6_000_000).replace(b"\n", b"-")
    body = body[:120_000] + b"\n" + body[120_000:] if how.startswith("readlines") else body
    fenced.object("r").put(body, A)
    with through.object("r").get() as file:
        assert file.read(100_000) == body[:100_000]
        for _ in range(3):
            proxy.once("GET", "reset", where=r"/r\.d/")
        file.raw._drop()
        call = {
            "read": lambda: file.read(5_000_000),
            "readinto": lambda: file.readinto(bytearray(5_000_000)),
            "readline": file.readline,
            "readlines": file.readlines,
            "readlines to a hint": lambda: file.readlines(50_000),
            "readinto1": lambda: file.readinto1(bytearray(5_000_000)),
        }[how]
        with pytest.raises(BotoCoreError):
            call()
        assert proxy.rules == []
        assert file.tell() == 100_000
        assert file.read() == body[100_000:]


def test_the_lines_of_a_file_up_to_a_hint_and_all(fenced, data):
    """As every file of the standard library gives them."""
    with fenced.object("r").get() as file:
        plain = io.BytesIO(LONG)
        assert file.readlines(20) == plain.readlines(20)
        for hint in ([0], [-1], [None], []):
            for each in (file, plain):
                each.seek(-80_000, io.SEEK_END)
            assert file.readlines(*hint) == plain.readlines(*hint)


def interrupted(at: int, call):
    """Call, and be interrupted at this line of what runs in the reader; return whether that line came."""
    left = [at]

    def trace(frame, event, _):
        if frame.f_code.co_filename != streams.__file__ or frame.f_code.co_name not in ("readinto", "_read"):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


READS = {
    "read": lambda file: file.read(300_000),
    "all of it": lambda file: file.read(),
    "read1": lambda file: file.read1(1000),
    "read1, as much as there is": lambda file: file.read1(),
    "peek": lambda file: file.peek(),
    "readinto": lambda file: file.readinto(bytearray(300_000)),
    "readinto1": lambda file: file.readinto1(bytearray(1000)),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(300_000),
    "the next line": next,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_wherever_a_read_is_interrupted_nothing_is_lost_nor_taken_for_damaged(fenced, data, read):
    """Ctrl-C, or a signal handler that raises: who catches it and reads on gets the content, verified."""
    at, more = 0, True
    while more:
        at += 1
        with fenced.object("r").get() as file:
            start = file.read(streams.BUFFER)
            more = interrupted(at, lambda file=file: read(file))
            if not more:
                break
            assert file.tell() == streams.BUFFER
            assert start + file.read(400_000) + file.read() == LONG
    assert at > 20


def test_a_place_is_counted_from_where_files_are(fenced, data):
    """Of holes and other systems' ways to count a file here knows nothing."""
    with fenced.object("r").get() as file:
        for whence in (3, 4, 9):
            with pytest.raises(ValueError, match="whence"):
                file.seek(0, whence)
        assert file.seek(-8, io.SEEK_END) == len(LONG) - 8
        assert file.read() == b"0299999\n"
