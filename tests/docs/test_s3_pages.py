"""The pages about what surrounds a fenced object run on a real S3 server, and do what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from sinkfence import Token
from sinkfence_s3 import FencedBucket

ROOT = Path(__file__).parents[2]
RunPage = Callable[..., dict[str, Any]]
A, B = Token("j", 1, "a:1"), Token("j", 2, "b:1")


@pytest.fixture
def given(s3_server: Any, bucket_name: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `boto3.client("s3")` finds in the environment; the bucket and prefix to put for the page's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", s3_server.region)
    return {'"reports"': repr(bucket_name), '"daily/"': repr(prefix)}


@pytest.fixture
def bucket(s3_client: Any, bucket_name: str, prefix: str) -> FencedBucket:
    """The bucket of the page."""
    return FencedBucket(s3_client, bucket_name, prefix=prefix, probe="never")


def test_pandas_and_arrow(
    run_page: RunPage, given: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames go through pandas and Arrow, are read by columns, and found by fsspec's URLs; gzip wraps one."""
    names = run_page("docs/how-to/use-pandas-and-arrow.md", replace=given)
    assert capsys.readouterr().out == "größe\n2000 999000\nTrue\n"
    assert names["sales"].stat().seq == 3  # an arming and two puts
    names["leases"].close()
    with pytest.raises(FileNotFoundError):
        names["Fenced"](names["bucket"]).info("fenced://missing")


def test_readers_are_sent_to_s3(run_page: RunPage, given: dict[str, str], bucket: FencedBucket) -> None:
    """Nothing, small content and large content: 404, the bytes, and a URL by which S3 gives them."""
    names = run_page("docs/how-to/send-readers-to-s3.md", replace=given)
    report = bucket.object("latest.csv")
    with TestClient(names["app"], follow_redirects=False) as client:
        assert client.get("/report").status_code == 404
        report.put(b"a,b", A, content_type="text/csv")
        answer = client.get("/report")
        assert (answer.content, answer.headers["Content-Type"]) == (b"a,b", "text/csv; charset=utf-8")
        large = b"a,b\n" * 300_000
        report.put(large, A, content_type="text/csv")
        answer = client.get("/report")
        assert answer.status_code == 307
    report.put(b"newer", A)
    there = httpx.get(answer.headers["Location"], trust_env=False)
    assert (there.content, there.headers["Content-Type"]) == (large, "text/csv")


def test_a_bucket_is_kept_tidy(
    run_page: RunPage, given: dict[str, str], bucket: FencedBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an older owner left is removed, object by object, past what `put_once` made."""
    bucket.put_once("aa", b"once", step="once")
    for name in ("a", "b"):
        bucket.object(name).put(b"x" * 1_100_000, A)
        bucket.object(name).put(b"short", B)
    run_page("docs/how-to/keep-a-bucket-tidy.md", replace=given)
    assert len(re.findall(r"^removed .*[ab]\.d/1-", capsys.readouterr().out, re.MULTILINE)) == 2


def test_the_rules_of_the_page_are_well_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3's own shapes: boto3 sends them, and a store takes them. What the policy denies is AWS's to show."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    page = (ROOT / "docs/how-to/keep-a-bucket-tidy.md").read_text()
    lifecycle, policy = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    with mock_aws():
        client = boto3.client("s3", aws_access_key_id="x", aws_secret_access_key="x")
        client.create_bucket(Bucket="reports")
        client.put_bucket_lifecycle_configuration(Bucket="reports", LifecycleConfiguration=lifecycle)
        client.put_bucket_policy(Bucket="reports", Policy=json.dumps(policy))
        assert client.get_bucket_lifecycle_configuration(Bucket="reports")["Rules"]
        client.close()
