"""The command that starts servers to try things on, as its user has it in a terminal."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys

import boto3
import psycopg
import pytest

COMMAND = [sys.executable, "-m", "sinkfence_trials.servers"]


def test_what_it_prints_reaches_its_servers_until_it_is_interrupted() -> None:
    """Its output, typed into a shell, names a database and a bucket that take writes, until it ends."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "# until Ctrl-C\n"))
        given = dict(re.fullmatch(r"(\w+)=(.*)", shlex.split(line)[1]).groups() for line in lines)
        assert all(line.startswith("export ") for line in lines)
        dsn = given["DATABASE_URL"].replace("+psycopg", "")
        with psycopg.connect(dsn) as conn:
            conn.execute("create role shop createrole")
        client = boto3.client(
            "s3",
            endpoint_url=given["AWS_ENDPOINT_URL_S3"],
            aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
            region_name=given["AWS_DEFAULT_REGION"],
        )
        client.put_object(Bucket=given["BUCKET"], Key="k", Body=b"")
        client.close()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
    assert process.returncode == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn, connect_timeout=5)


def test_one_kind_alone() -> None:
    """Asked for one kind, it starts no other; SIGTERM ends it as Ctrl-C does."""
    with subprocess.Popen([*COMMAND, "postgres"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "# until Ctrl-C\n"))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert [line.partition("=")[0] for line in lines] == ["export DATABASE_URL"]


def test_another_word_is_a_wrong_usage() -> None:
    """A kind that it does not know ends it with the usage, and code 2."""
    ran = subprocess.run([*COMMAND, "redis"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "python -m sinkfence_trials.servers [postgres] [s3]" in ran.stderr
