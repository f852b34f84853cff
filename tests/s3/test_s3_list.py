"""Listing: the names of a bucket's objects, and nothing that lies beside them."""

import pytest

from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

A = Token("j", 1, "a:1")


def test_names_are_listed_and_what_lies_beside_them_is_not(fenced, s3_client, bucket_name, prefix, count):
    """Armed, deleted and put-once objects are listed too: telling them apart would cost a request each."""
    for name in ("a", "b/c", "ü/名", "b d"):
        fenced.object(name).put(b"x", A)
    fenced.object("b/long").put(b"x" * 1_100_000, A)
    fenced.object("b/armed").arm(A)
    fenced.object("b/deleted").put(b"x", A)
    fenced.object("b/deleted").delete(A)
    fenced.put_once("once", b"x", step="s")
    for stranger in (".sinkfence-probe/1/create", "folder/", "gone.d/7-left"):
        s3_client.put_object(Bucket=bucket_name, Key=prefix + stranger, Body=b"")
    count.clear()
    names = list(fenced.list())
    assert sorted(names) == sorted(["a", "b/c", "ü/名", "b d", "b/long", "b/armed", "b/deleted", "once"])
    assert count == ["ListObjectsV2"]
    assert list(fenced.list("b/")) == ["b/armed", "b/c", "b/deleted", "b/long"]
    assert list(fenced.list("nothing")) == []
    assert {name for name in fenced.list("b/") if fenced.object(name).stat()} == {"b/c", "b/long"}


def test_a_list_goes_on_over_pages_and_makes_no_request_before_it_is_read(
    client_at, s3_server, bucket_name, prefix, s3_client
):
    """A thousand keys a request; the next page is asked for when the reader gets there."""
    client = client_at(s3_server.endpoint)
    asked = []

    def two(params, **_):
        params["MaxKeys"] = 2
        asked.append(params.get("ContinuationToken"))

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", two)
    bucket = FencedBucket(client, bucket_name, prefix=prefix, probe="never")
    for number in range(5):
        s3_client.put_object(Bucket=bucket_name, Key=f"{prefix}{number}", Body=b"")
    names = bucket.list()
    assert asked == []
    assert next(names) == "0"
    assert len(asked) == 1
    assert list(names) == ["1", "2", "3", "4"]
    assert len(asked) == 3


def test_a_prefix_need_not_end_in_a_slash(s3_client, bucket_name, prefix):
    """What a probe has left behind there is nobody's object: neither with that prefix, nor with a shorter."""
    monthly = FencedBucket(s3_client, bucket_name, prefix=prefix + "monthly-", probe="never")
    monthly.object("r").put(b"x", A)
    left = prefix + "monthly-.sinkfence-probe/1/create"
    s3_client.put_object(Bucket=bucket_name, Key=left, Body=b"first")
    assert list(monthly.list()) == ["r"]
    assert list(FencedBucket(s3_client, bucket_name, prefix=prefix).list()) == ["monthly-r"]


@pytest.mark.parametrize("begin", [None, b"a", 5])
def test_a_prefix_is_text(fenced, begin, count):
    """Refused when it is called, before any request."""
    with pytest.raises(TypeError):
        fenced.list(begin)
    assert count == []
