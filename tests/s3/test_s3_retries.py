"""Whatever happens to one request of a long put, it is put once and whole, or its caller is told."""

import pytest
from botocore.exceptions import ClientError, HTTPClientError

from sinkfence.errors import LeaseLost
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

MIB = 1024 * 1024
A = Token("j", 3_000_000_007, "a:1")
LONG = bytes(range(256)) * 4096 * 5 + b"x"
"""Two parts."""
SHORT = LONG[: MIB + 1]
"""One request."""
CREATE, PART, COMPLETE = ("POST", r"\?uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId=")
DATA = ("PUT", r"/r\.d/[^?]+$")
REQUESTS = {
    "create": (LONG, CREATE),
    "part": (LONG, PART),
    "complete": (LONG, COMPLETE),
    "data": (SHORT, DATA),
}
FAULTS = {
    "answer lost": ("lose reply",),
    "reset": ("reset",),
    "cut": ("cut request",),
    "500": ("forge", 500, b"<Error><Code>InternalError</Code></Error>"),
    "500, applied": ("apply, then forge", 500, b"<Error><Code>InternalError</Code></Error>"),
    "429": ("forge", 429, b"<Error><Code>TooManyRequests</Code></Error>"),
    "409": ("forge", 409, b"<Error><Code>OperationAborted</Code></Error>"),
    "too late": ("forge", 403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>"),
    "error in a 200": ("forge", 200, b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"),
    "slow down": ("forge", 503, b"<html>slow down"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Parts are as small as S3 lets them be, and botocore does not pause between its repetitions."""
    monkeypatch.setattr("sinkfence_s3.uploads.PART", 5 * MIB)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_any_request_may_fail_in_passing(fenced, through, proxy, beside, fault, request_):
    """C28, C38: sent again, signed anew, with the bytes that it had; nothing is left but an empty upload."""
    content, (method, where) = REQUESTS[request_]
    through.object("r").arm(A)
    proxy.once(method, *FAULTS[fault], where=where)
    written = through.object("r").put(iter([content]), A, step="render")
    assert proxy.rules == []
    assert (written.seq, written.repeated, written.superseded) == (2, False, False)
    assert fenced.object("r").get().read() == content
    objects, uploads = beside()
    assert len(objects) == 1
    # Where the answer that named the upload was lost, nobody can abort it; it holds no part.
    assert len(uploads) == (request_ == "create" and fault in ("answer lost", "500, applied"))


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
@pytest.mark.parametrize("fault", ["answer lost", "500, applied"])
@pytest.mark.parametrize("request_", ["part", "complete", "data"])
def test_boto3s_own_repetitions_change_nothing_of_that(
    fenced, proxy, client_at, bucket_name, prefix, beside, request_, fault, mode
):
    """C26: each mode of boto3's retries, for each request of a long put."""
    content, (method, where) = REQUESTS[request_]
    client = client_at(proxy.endpoint, retries={"mode": mode, "total_max_attempts": 3})
    thing = FencedBucket(client, bucket_name, prefix=prefix, probe="never").object("r")
    thing.arm(A)
    proxy.once(method, *FAULTS[fault], where=where)
    written = thing.put(content, A, step="render")
    assert proxy.rules == []
    assert (written.seq, written.repeated, written.superseded) == (2, False, False)
    assert fenced.object("r").get().read() == content
    assert len(beside()[0]) == 1


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_that_keeps_failing_ends_the_put_with_its_own_error(
    fenced, through, proxy, beside, request_
):
    """Nothing was put: the client's error, no doubt about the outcome, and nothing left."""
    content, (method, where) = REQUESTS[request_]
    for _ in range(4):
        proxy.once(method, "reset", where=where)
    with pytest.raises(HTTPClientError):
        through.object("r").put(content, A)
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_that_is_forbidden_is_sent_once(fenced, through, proxy, beside, request_):
    """403: boto3's own error at once; nothing was put, and nothing is left."""
    content, (method, where) = REQUESTS[request_]
    proxy.once(method, "forge", 403, b"<Error><Code>AccessDenied</Code></Error>", where=where)
    with pytest.raises(ClientError, match="AccessDenied"):
        through.object("r").put(content, A)
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


@pytest.mark.parametrize("request_", REQUESTS)
def test_the_lease_is_looked_at_again_before_a_request_is_repeated(fenced, through, proxy, beside, request_):
    """C38: minutes may have passed; a term that ended meanwhile stops the upload."""
    content, (method, where) = REQUESTS[request_]

    class Ending:
        @property
        def token(self):
            if proxy.rules:
                return A
            raise LeaseLost(A, "its term is over")

        def lose(self, reason):
            raise AssertionError

    proxy.once(method, "forge", 403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>", where=where)
    with pytest.raises(LeaseLost):
        through.object("r").put(content, Ending())
    assert fenced.object("r").stat() is None
    assert beside() == ([], [])


def test_a_part_without_an_etag_is_sent_again(fenced, through, proxy):
    """A 200 that names nothing is no answer: the upload could not be completed with it."""
    proxy.once("PUT", "forge", 200, where="partNumber=1")
    through.object("r").put(LONG, A)
    assert fenced.object("r").get().read() == LONG


@pytest.mark.parametrize("answer", ["lose reply", "reset"])
def test_what_cannot_be_removed_at_first_is_tried_again(fenced, through, proxy, beside, answer):
    """An abort whose answer is lost, or that never arrived, is sent again: no parts are left."""
    proxy.once("DELETE", answer)
    with pytest.raises(RuntimeError):
        with through.object("r").open(A) as file:
            file.write(LONG)
            raise RuntimeError
    assert proxy.rules == []
    assert beside() == ([], [])
