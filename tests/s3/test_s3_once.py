"""Keys that are written once: the first creator wins, and its repetition is recognised."""

from enum import Enum

import pytest

from sinkfence.errors import IdempotencyMismatch, OutcomeUnknown, SchemaMismatch
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

A = Token("j", 1, "a:1")


def test_the_first_creator_wins_and_a_repetition_is_recognised(fenced, s3_client, bucket_name, prefix, count):
    """Raw bytes that any S3 client can read; the same step and content again is a repetition."""
    first = fenced.put_once("2026-05.csv", b"a,b", step="export 2026-05")
    assert (first.repeated, first.generation, first.requests) == (False, None, 1)
    again = fenced.put_once("2026-05.csv", b"a,b", step="export 2026-05")
    assert (again.repeated, again.etag, again.requests) == (True, first.etag, 2)
    assert count == ["PutObject", "PutObject", "HeadObject"]
    assert s3_client.get_object(Bucket=bucket_name, Key=prefix + "2026-05.csv")["Body"].read() == b"a,b"


def test_names_of_an_enum_are_their_values(s3_client, bucket_name, prefix):
    """A bucket, prefix, name and step that are members of a str Enum are those of a plain str."""
    names = Enum("names", {"BUCKET": bucket_name, "PREFIX": prefix, "KEY": "k", "STEP": "s"}, type=str)
    fenced = FencedBucket(s3_client, names.BUCKET, prefix=names.PREFIX)
    fenced.put_once(names.KEY, b"x", step=names.STEP)
    assert FencedBucket(s3_client, bucket_name, prefix=prefix).put_once("k", b"x", step="s").repeated
    assert list(fenced.list(names.KEY)) == ["k"]


@pytest.mark.parametrize(("body", "step"), [(b"other", "s"), (b"x", "other step")])
def test_other_content_or_another_step_is_a_mismatch(fenced, s3_client, bucket_name, prefix, body, step):
    """What is there stays as it is."""
    fenced.put_once("k", b"x", step="s")
    with pytest.raises(IdempotencyMismatch):
        fenced.put_once("k", body, step=step)
    assert s3_client.get_object(Bucket=bucket_name, Key=prefix + "k")["Body"].read() == b"x"


def test_a_register_or_somebodys_file_at_the_key_is_a_mismatch(fenced, s3_client, bucket_name, prefix):
    """put_once overwrites nothing, and a fenced object doesn't take over what put_once made."""
    fenced.object("k").put(b"x", A)
    s3_client.put_object(Bucket=bucket_name, Key=prefix + "file", Body=b"x")
    for name in ("k", "file"):
        with pytest.raises(IdempotencyMismatch):
            fenced.put_once(name, b"x", step="s")
    assert fenced.object("k").get().read() == b"x"
    fenced.put_once("once", b"x", step="s")
    with pytest.raises(SchemaMismatch):
        fenced.object("once").put(b"y", A)


@pytest.mark.parametrize("mode", [None, "legacy", "standard"])
def test_a_lost_answer_is_a_success_and_not_a_repetition(fenced, proxy, client_at, bucket_name, prefix, mode):
    """Its own success, seen as 412 by boto3's repetition or read back, is reported as such."""
    config = {} if mode is None else {"retries": {"mode": mode, "total_max_attempts": 3}}
    bucket = FencedBucket(client_at(proxy.endpoint, **config), bucket_name, prefix=prefix, probe="never")
    proxy.once("PUT", "lose reply")
    written = bucket.put_once("k", b"x", step="s")
    assert not written.repeated
    assert fenced.put_once("k", b"x", step="s").repeated


def test_what_never_arrived_is_sent_again_and_at_last_unknown(fenced, through, proxy):
    """A bounded number of sendings; then the outcome is unknown."""
    proxy.once("PUT", "reset")
    assert through.put_once("k", b"x", step="s").requests == 3
    for _ in range(4):
        proxy.once("PUT", "reset")
    with pytest.raises(OutcomeUnknown):
        through.put_once("k2", b"x", step="s")


def test_files_and_streams_of_any_length_are_put_in_one_request(
    fenced, through, proxy, s3_client, bucket_name, prefix, tmp_path
):
    """More than 8 MiB lies in a temporary file meanwhile, and is whole when it is sent again."""
    content = bytes(range(256)) * 4096 * 9
    (tmp_path / "body").write_bytes(b"head" + content)
    with (tmp_path / "body").open("rb") as file:
        file.seek(4)
        for number, body in enumerate((content, file, iter([content[:7], content[7:]]))):
            proxy.once("PUT", "reset")
            written = through.put_once(f"k{number}", body, step="s")
            assert (written.repeated, written.requests) == (False, 3)
            there = s3_client.get_object(Bucket=bucket_name, Key=f"{prefix}k{number}")["Body"].read()
            assert there == content
    assert fenced.put_once("k1", iter([content]), step="s").repeated
    with pytest.raises(IdempotencyMismatch):
        fenced.put_once("k1", content[1:], step="s")


def test_a_body_that_is_too_long_is_refused(fenced, monkeypatch, count):
    """5 GiB is what S3 takes in one request; nothing is sent of what is longer."""
    monkeypatch.setattr("sinkfence_s3.once.MAX_ONCE", 10)
    with pytest.raises(ValueError, match="5 GiB"):
        fenced.put_once("k", iter([b"x" * 11]), step="s")
    assert count == []
    fenced.put_once("k", b"x" * 10, step="s")


@pytest.mark.parametrize("step", ["", "x" * 201, "a\nb"])
def test_a_malformed_step_is_refused(fenced, step, count):
    """Before any request."""
    with pytest.raises(ValueError):
        fenced.put_once("k", b"x", step=step)
    assert count == []
