"""An answer that S3 did not give, or not whole, says nothing about what is there."""

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError, IncompleteReadError

from sinkfence.errors import OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket
from sinkfence_s3.delivery import SENDINGS

A, B = Token("j", 3_000_000_007, "a:1"), Token("j", 3_000_000_008, "b:1")
INGRESS = [b"404 page not found\n", b"<html><head><title>404 Not Found</title></head></html>", b""]


BUSY = b"<Error><Code>TooManyRequests</Code></Error>"


def test_a_request_that_was_one_too_many_is_sent_again(fenced, through, proxy):
    """429: it was not taken in, whichever request of a put it was; a store that stays so is its own error."""
    thing = through.object("r")
    proxy.once("PUT", "forge", 429, BUSY)
    thing.arm(A)
    for _ in range(2):
        proxy.once("PUT", "forge", 429, BUSY)
    assert thing.put(b"1000", A).seq == 2
    proxy.once("PUT", "forge", 429, BUSY)
    assert through.put_once("o", b"once", step="s").requests == 3
    assert proxy.rules == []
    for _ in range(4):
        proxy.once("PUT", "forge", 429, BUSY)
    with pytest.raises(ClientError, match="TooManyRequests"):
        thing.put(b"2000", A)
    assert proxy.rules == []
    assert fenced.object("r").get().read() == b"1000"


def test_a_put_that_was_one_too_many_is_decided_anew_where_a_newer_owner_has_come(fenced, through, proxy):
    """It is not sent again on top of what the newer owner wrote meanwhile."""
    thing = through.object("r")
    thing.put(b"old", A)
    fenced.object("r").arm(B)
    proxy.once("PUT", "forge", 429, BUSY)
    with pytest.raises(StaleToken) as stale:
        thing.put(b"late", A)
    assert not stale.value.earlier_attempt_unknown
    assert fenced.object("r").get().read() == b"old"


@pytest.mark.parametrize("answer", [(429, BUSY), (400, b"<Error><Code>RequestTimeout</Code></Error>")])
def test_the_probe_concludes_nothing_from_a_request_that_was_not_taken_in(
    client_at, proxy, bucket_name, prefix, answer
):
    """It is no refusal of a condition: in the end the store's own error, and the next write goes through."""
    thing = FencedBucket(client_at(proxy.endpoint), bucket_name, prefix=prefix).object("r")
    for _ in range(SENDINGS):
        proxy.once("PUT", "forge", *answer, where="/create-")
    with pytest.raises(ClientError):
        thing.put(b"x", A)
    assert proxy.rules == []
    assert thing.put(b"x", A).seq == 1


@pytest.mark.parametrize("page", INGRESS)
def test_a_404_that_is_not_of_s3_does_not_say_that_nothing_is_there(fenced, through, proxy, page):
    """An ingress whose backend is away for a moment answers so: boto3's own error, as for a 403."""
    fenced.object("r").put(b"1000", A)
    thing = through.object("r")
    for call in (
        thing.get,
        thing.stat,
        lambda: thing.arm(B),
        lambda: thing.delete(B),
        lambda: thing.put(b"1", B, expect=0),
        lambda: through.collect("r"),
    ):
        proxy.once("GET", "forge", 404, page)
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert fenced.object("r").get().read() == b"1000"
    assert fenced.object("r").stat().generation == A.generation


def test_such_a_404_in_place_of_what_would_be_read_back_leaves_the_outcome_unknown(fenced, through, proxy):
    """The put was applied and its answer lost: it is not sent again as if the object were gone."""
    thing = through.object("r")
    thing.put(b"before", A)
    proxy.once("PUT", "lose reply")
    proxy.once("GET", "forge", 404, INGRESS[0])
    with pytest.raises(OutcomeUnknown):
        thing.put(b"after", A, step="s")
    assert proxy.rules == []
    assert thing.put(b"after", A, step="s").repeated


def test_a_register_that_ends_early_is_a_lost_answer_and_no_damage(fenced, through, proxy):
    """A connection closed in mid-body, without a reset: botocore's error, as for a reset."""
    fenced.object("r").put(b"x" * 200_000, A)
    for call in (through.object("r").get, through.object("r").stat, lambda: through.object("r").arm(B)):
        proxy.once("GET", "end reply")
        with pytest.raises(IncompleteReadError):
            call()
    assert fenced.object("r").stat().generation == A.generation


def test_what_is_read_back_is_read_again_where_it_ended_early(fenced, through, proxy):
    """The put was applied, and its answer lost: the second reading tells."""
    thing = through.object("r")
    thing.arm(A)
    proxy.once("PUT", "lose reply")
    proxy.once("GET", "end reply")
    assert thing.put(b"x" * 200_000, A).seq == 2
    assert proxy.rules == []
    fenced.object("r").put(b"x" * 200_000, A)
    proxy.once("GET", "end reply")  # read back after a 412 at first hand
    assert thing.put(b"y", A).seq == 4
    assert proxy.rules == []


def test_the_probe_concludes_nothing_from_bytes_that_ended_early(client_at, proxy, bucket_name, prefix):
    """The store is not refused for what its connection did: the next write goes through."""
    thing = FencedBucket(client_at(proxy.endpoint), bucket_name, prefix=prefix).object("r")
    for _ in range(SENDINGS):
        proxy.once("GET", "end reply", where="/create-")
    with pytest.raises(IncompleteReadError):
        thing.put(b"x", A)
    assert thing.put(b"x", A).seq == 1


class Credentials:
    """Credentials that can be had for some requests, and then fail for some."""

    def __init__(self, key, secret, error):
        self.access_key, self.secret_key, self.token, self.account_id = key, secret, None, None
        self.error, self.method = error, "custom"
        self.good, self.bad = 0, 0

    def get_frozen_credentials(self):
        if self.good:
            self.good -= 1
        elif self.bad:
            self.bad -= 1
            raise self.error
        return self


@pytest.fixture(params=["process", "STS"])
def credentials(request, s3_server):
    """Of a process that fails, or of STS, whose refusals are the same class of errors as those of S3."""
    refused = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    error = {
        "process": CredentialRetrievalError(provider="custom-process", error_msg="it is away"),
        "STS": ClientError(refused, "AssumeRole"),
    }[request.param]
    return Credentials(s3_server.access_key, s3_server.secret_key, error)


@pytest.fixture
def put(credentials, client_at, proxy, bucket_name, prefix, monkeypatch):
    """Put under a step, through the proxy, by a client with such credentials that repeats by itself."""
    client = client_at(proxy.endpoint, retries={"mode": "standard", "total_max_attempts": 3})
    monkeypatch.setattr(client._request_signer, "_credentials", credentials)
    thing = FencedBucket(client, bucket_name, prefix=prefix, probe="never").object("r")
    return lambda: thing.put(b"content", A, step="s")


def test_credentials_that_fail_in_boto3s_repetition_leave_the_first_sending_in_doubt(
    fenced, credentials, proxy, put
):
    """The first sending was applied, and its answer lost: it is read back."""
    credentials.good, credentials.bad = 2, 1
    proxy.once("PUT", "lose reply")
    assert put().seq == 1
    assert not credentials.bad
    assert fenced.object("r").stat().seq == 1


def test_an_unknown_outcome_is_said_where_credentials_stay_away(fenced, credentials, proxy, put):
    """The very error of the credentials would say that nothing was put."""
    credentials.good, credentials.bad = 2, 9
    proxy.once("PUT", "lose reply")
    with pytest.raises(OutcomeUnknown):
        put()
    assert fenced.object("r").get().read() == b"content"
    credentials.bad = 0
    assert put().repeated


def test_credentials_that_fail_before_anything_is_sent_are_their_own_error(fenced, credentials, put):
    """Nothing was sent: there is no doubt."""
    credentials.good, credentials.bad = 1, 1
    with pytest.raises(type(credentials.error)):
        put()
    assert not credentials.bad
    assert fenced.object("r").stat() is None
    assert put().seq == 1
