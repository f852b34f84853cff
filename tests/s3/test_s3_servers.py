"""Other servers: two that enforce conditions say the same as SeaweedFS, and two that don't are refused."""

import contextlib
import sys
import uuid
from pathlib import Path

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sinkfence.errors import Conflict, IdempotencyMismatch, JobMismatch, NotEnforced, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket, doctor
from sinkfence_trials.servers import binaries
from sinkfence_trials.servers.supervised import supervised

LOW = 3_000_000_000
A, B = Token("j", LOW + 1, "a:1"), Token("j", LOW + 2, "b:1")
LONG = bytes(range(256)) * 4200
STREAM = 17 * 1024 * 1024
KEYS = {"access_key": "someone", "secret_key": "something-secret"}

COMMANDS = {
    "moto": ["{moto_server}", "-H", "127.0.0.1", "-p", "{port}"],
    "ministack": [
        "env",
        *("TMPDIR=.", "SERVICES=s3", "BIND_HOST=127.0.0.1", "IOT_MTLS_ENABLED=0", "GATEWAY_PORT={port}"),
        "{ministack}",
    ],
    "nanio": [
        "env",
        *(f"NANIO_ACCESS_KEY={KEYS['access_key']}", f"NANIO_SECRET_KEY={KEYS['secret_key']}"),
        *("{nanio}", "serve", "--host", "127.0.0.1", "--port", "{port}", "--data-dir", "data"),
    ],
    "localbucket": ["{localbucket}", "--port", "{port}", "data"],
}
PROGRAMS = {"moto": "moto_server", "ministack": "ministack", "nanio": "nanio", "localbucket": "localbucket"}


@pytest.fixture(scope="module")
def servers():
    """Start each server when it is first asked for; a program that isn't installed is not run."""
    running = {}
    with contextlib.ExitStack() as stack:

        def endpoint(name):
            if name not in running:
                running[name] = stack.enter_context(served(name))
            return running[name]

        yield endpoint


@contextlib.contextmanager
def served(name):
    """Run one of the servers, until it takes requests and to the end of the block."""
    import boto3

    program = Path(sys.executable).with_name(PROGRAMS[name])
    if not program.exists():
        pytest.skip(f"not run: {PROGRAMS[name]} is not installed (extra `test`)")
    with supervised(name, binaries.temporary()) as process:
        port = binaries.free_ports(1)[0]
        (process.folder / "data").mkdir()
        words = [word.format(port=port, **{program.name: program}) for word in COMMANDS[name]]
        process.start(words)
        config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, proxies={})
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=KEYS["access_key"],
            aws_secret_access_key=KEYS["secret_key"],
            region_name="us-east-1",
            config=config,
        )
        with contextlib.closing(client):

            def ready(code):
                with contextlib.suppress(BotoCoreError, ClientError):
                    client.create_bucket(Bucket="bkt")
                    return code is None
                return False

            process.wait(ready)
            yield client


@pytest.fixture(params=["moto", "ministack"])
def emulator(request, servers):
    """A client of a server that enforces both conditions."""
    return servers(request.param)


@pytest.fixture
def bucket(emulator):
    """Its bucket, in a prefix of the test's own. Not probed: moto has no lock, and may lose a race."""
    return FencedBucket(emulator, "bkt", prefix=f"{uuid.uuid4()}/", probe="never")


def test_a_stale_owner_is_refused_there_too(bucket):
    """Arming, putting, repeating, expecting; a newer owner; the refusals and who is refused."""
    thing, late = bucket.object("r"), bucket.object("r")
    thing.arm(A)
    assert thing.stat() is None
    first = late.put(b"A's", A, step="s", content_type="text/plain")
    assert late.put(b"A's again", A, expect=first.seq).requests == 1
    thing.arm(B)
    for stale in (lambda: late.put(b"late", A), lambda: late.arm(A), lambda: late.delete(A)):
        with pytest.raises(StaleToken):
            stale()
    assert thing.put(b"A's", B, step="s").repeated
    with pytest.raises(IdempotencyMismatch):
        thing.put(b"other", B, step="s")
    with pytest.raises(Conflict):
        thing.put(b"B's", B, expect=first.seq)
    with pytest.raises(JobMismatch):
        bucket.object("r").put(b"x", Token("another", LOW + 9, "o:1"))
    assert thing.get().read() == b"A's again"
    thing.delete(B)
    with pytest.raises(KeyError):
        thing.get()


def test_long_contents_go_there_too(bucket, emulator):
    """External, in parts, by an open file; read by ranges; replaced, and collected by a newer owner."""
    thing = bucket.object("r")
    thing.put(LONG, A)
    with thing.open(A) as file:
        for _ in range(STREAM // 65_536):
            file.write(b"x" * 65_536)
    with thing.get() as reader:
        reader.seek(-5, 2)
        assert reader.read() == b"xxxxx"
    bucket.object("r").put(LONG, B)
    assert len(bucket.collect("r")) == 2
    assert list(bucket.list()) == ["r"]
    assert thing.get().read() == LONG
    assert emulator.list_multipart_uploads(Bucket="bkt").get("Uploads", []) == []


def test_a_key_that_is_put_once_is_put_once_there_too(bucket):
    """The first creator wins; its repetition is known by the metadata, and anybody else's refused."""
    assert not bucket.put_once("once", b"x", step="s").repeated
    assert bucket.put_once("once", b"x", step="s").repeated
    with pytest.raises(IdempotencyMismatch):
        bucket.put_once("once", b"y", step="s")


def test_the_conditions_of_an_emulator_pass_the_doctor(emulator):
    """Every step but the races is enforced; of races nothing is claimed where there is no lock."""
    findings = {each.name: each.grade for each in doctor(emulator, "bkt").findings}
    steps = ("create if absent", "swap if unchanged", "swap of a missing key", "metadata", "deleting")
    assert {findings[name] for name in steps} == {"ok"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [("nanio", "create if absent: accepted"), ("localbucket", "swap if unchanged: accepted")],
)
def test_a_store_that_ignores_conditions_is_refused(servers, name, problem):
    """C29: nanio ignores both conditions and localbucket one: no write gets through, nothing is left."""
    client = servers(name)
    bucket = FencedBucket(client, "bkt", prefix=f"{uuid.uuid4()}/")
    for call in (
        lambda: bucket.object("r").arm(A),
        lambda: bucket.object("r").put(b"x", A),
        lambda: bucket.object("r").put(LONG, A),
        lambda: bucket.put_once("o", b"x", step="s"),
    ):
        with pytest.raises(NotEnforced, match=problem):
            call()
    report = doctor(client, "bkt")
    assert not report.fenced
    assert problem in str(report)
    assert client.list_objects_v2(Bucket="bkt").get("Contents", []) == []


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_a_proxy_that_strips_conditions_is_refused(servers, proxy_to, client_at, header):
    """C29: where signatures are not checked a condition can be lost on the way: the probe finds it."""
    proxy = proxy_to(servers("ministack").meta.endpoint_url)
    proxy.strips = (header,)
    bucket = FencedBucket(client_at(proxy.endpoint), "bkt", prefix=f"{uuid.uuid4()}/")
    with pytest.raises(NotEnforced, match="accepted, although"):
        bucket.object("r").put(b"x", A)
    assert list(bucket.list()) == []


def test_a_proxy_that_strips_metadata_is_named_by_the_doctor(servers, proxy_to, client_at):
    """`put_once` knows its own by metadata: without it that mode is not enforced, and fenced objects are."""
    proxy = proxy_to(servers("ministack").meta.endpoint_url)
    proxy.strips = ("x-amz-meta-sinkfence-write",)
    report = doctor(client_at(proxy.endpoint), "bkt", "stripped/")
    assert (report.fenced, report.holds("put_once")) == (True, False)
