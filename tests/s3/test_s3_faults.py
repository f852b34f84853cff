"""A proxy before the real server does what networks do: a put is applied once, or its caller is told."""

import datetime
import json
from contextlib import suppress

import pytest
from botocore.compat import get_current_datetime
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError

from sinkfence.errors import Conflict, OutcomeUnknown, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

A, B = Token("j", 3_000_000_001, "a:1"), Token("j", 3_000_000_002, "b:1")
OFF = {"total_max_attempts": 1}
MODES = {
    "off": OFF,
    "legacy": {"mode": "legacy", "total_max_attempts": 3},
    "standard": {"mode": "standard", "total_max_attempts": 3},
    "adaptive": {"mode": "adaptive", "total_max_attempts": 3},
}
SLOW_DOWN = 503, b"<Error><Code>SlowDown</Code></Error>"
INTERNAL = 500, b"<Error><Code>InternalError</Code></Error>"
CONFLICT = 409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"
HIDDEN = 200, b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>m</Message></Error>"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """botocore's pauses between its repetitions are left out; all else of its retry modes is as it is."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)


@pytest.fixture(params=MODES)
def retries(request):
    """Each of boto3's retry modes."""
    return MODES[request.param]


@pytest.fixture
def reach(retries, client_at, bucket_name, prefix, proxy):
    """Make the object as it is seen through the proxy."""

    def make(**config):
        client = client_at(proxy.endpoint, retries=retries, **config)
        return FencedBucket(client, bucket_name, prefix=prefix, probe="never").object("r")

    return make


@pytest.fixture
def faulty(reach):
    """The object through the proxy."""
    return reach()


@pytest.fixture
def ring(s3_client, bucket_name, prefix):
    """What was put, in order, read without our reader: the generation and the tag of each write."""

    def read():
        frame = s3_client.get_object(Bucket=bucket_name, Key=prefix + "r")["Body"].read()
        header = json.loads(frame[12 : 12 + int.from_bytes(frame[8:12], "big")])
        return [(generation, tag) for _, _, tag, generation, digest in header["ring"] if digest is not None]

    return read


PASSING = {
    "an answer lost": [("lose reply",)],
    "answers lost, one after the other": [("lose reply",), ("lose reply",)],
    "a reset before anything arrived": [("reset",)],
    "a reset in mid-body": [("cut request",)],
    "told to slow down": [("forge", *SLOW_DOWN)],
    "a storm of 409": [("forge", *CONFLICT)] * 3,
    "500 after it was applied": [("apply, then forge", *INTERNAL)],
    "500 and not applied": [("forge", *INTERNAL)],
    "an error in a 200, applied": [("apply, then forge", *HIDDEN)],
    "an error in a 200, not applied": [("forge", *HIDDEN)],
    "a reset, then slow down, then an answer lost": [("reset",), ("forge", *SLOW_DOWN), ("lose reply",)],
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_got_over_and_the_put_is_applied_once(faulty, proxy, fenced, ring, fault):
    """C26, C28: whatever happens to its requests, the step is put once, and the caller reads a success."""
    fenced.object("r").put(b"before", A)
    for kind, *answer in PASSING[fault]:
        proxy.once("PUT", kind, *answer)
    written = faulty.put(b"x" * 1000, A, step="s", expect=1)
    assert (written.seq, written.repeated, written.superseded) == (2, False, False)
    assert ring() == [(A.generation, None), (A.generation, A.key("s"))]
    assert fenced.object("r").get().read() == b"x" * 1000
    assert faulty.put(b"x" * 1000, A, step="s", expect=1).repeated


@pytest.mark.parametrize("fault", ["hold reply", "hold request"])
def test_a_timeout_is_read_back_and_what_arrives_later_is_refused(reach, proxy, fenced, ring, fault):
    """The answer takes too long, applied or still on its way: put once, also when it arrives in the end."""
    fenced.object("r").put(b"before", A)
    hasty = reach(read_timeout=0.5)
    hasty.arm(A)
    stop = proxy.hold("PUT", fault)
    assert hasty.put(b"x", A, step="s").seq == 2
    assert stop.reached.is_set()
    stop.go.set()
    if fault == "hold request":
        assert proxy.answered("PUT", 412)
    assert ring() == [(A.generation, None), (A.generation, A.key("s"))]


@pytest.mark.parametrize(
    ("fault", "applied"), [("lose reply", True), ("reset", False), ("cut request", False)]
)
def test_a_successor_that_comes_in_between_is_told_to_the_old_owner(
    faulty, retries, proxy, fenced, ring, holder, aside, fault, applied
):
    """B takes over before A hears what became of its put: a success that lost its lease, or stale."""
    fenced.object("r").put(b"before", A)
    bearer = holder(A)
    for _ in range(1 if applied else retries["total_max_attempts"]):
        proxy.once("PUT", fault)
    proxy.once("GET", "pass")
    stop = proxy.hold("GET", "hold request")  # by which A reads what became of it
    with aside(lambda: faulty.put(b"A's", bearer, step="s")) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        fenced.object("r").put(b"B's", B)
        stop.go.set()
    outcome = late()
    if applied:
        assert (outcome.seq, outcome.superseded) == (2, True)
    else:
        assert type(outcome) is StaleToken
    assert [type(each) for each in bearer.told] == [StaleToken]
    mine = [(A.generation, A.key("s"))] if applied else []
    assert ring() == [(A.generation, None), *mine, (B.generation, None)]
    assert fenced.object("r").get().read() == b"B's"


def test_a_request_that_is_delayed_past_a_takeover_is_refused_by_s3(faulty, proxy, fenced, ring, aside):
    """A's put is held until B has armed and written; S3 refuses it, and each of A's repetitions."""
    fenced.object("r").put(b"before", A)
    faulty.put(b"armed", A)  # so that the next put is one request
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: faulty.put(b"A's", A, step="s")) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        fenced.object("r").put(b"B's", B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert proxy.answered("PUT", 412)
    assert ring()[-1] == (B.generation, None)
    assert (A.generation, A.key("s")) not in ring()


def test_a_conflict_is_another_write_and_never_ones_own(faulty, proxy, fenced, ring, aside):
    """While the put waits, another thread of its owner replaces what it expected: Conflict, nothing put."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: faulty.put(b"mine", A, step="s", expect=1)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").put(b"the other's", A)
        stop.go.set()
    assert type(late()) is Conflict
    assert ring() == [(A.generation, None)] * 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (INTERNAL, OutcomeUnknown),
        (HIDDEN, OutcomeUnknown),
        (CONFLICT, ClientError),
    ],
)
def test_what_does_not_pass_is_not_guessed(faulty, proxy, fenced, ring, answer, expected):
    """A store that has only errors left: unknown, after a bounded number of tries; 409 says "not applied"."""
    fenced.object("r").put(b"before", A)
    for _ in range(40):
        proxy.once("PUT", "forge", *answer)
    with pytest.raises(expected):
        faulty.put(b"x", A, step="s")
    assert ring() == [(A.generation, None)]
    proxy.rules.clear()
    assert faulty.put(b"x", A, step="s").seq == 2  # the same step, later


def test_a_reading_that_breaks_off_is_no_content(faulty, proxy, fenced):
    """A GET that is cut in mid-body is read again, or is an error; never a shorter object."""
    fenced.object("r").put(b"x" * 100_000, A)
    proxy.once("GET", "cut reply")
    with suppress(HTTPClientError, IncompleteReadError):
        assert faulty.get().read() == b"x" * 100_000


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_a_condition_cannot_be_dropped_on_the_way_of_a_signed_request(faulty, proxy, fenced, header):
    """boto3 signs the conditions: S3 refuses a request that has lost one, and nothing is written."""
    if header == "if-match":
        fenced.object("r").put(b"before", A)
    before = fenced.object("r").stat()
    proxy.strips = (header,)
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        faulty.put(b"x", A)
    assert fenced.object("r").stat() == before


def test_a_clock_that_is_off_is_s3s_refusal_and_nothing_is_written(faulty, fenced, monkeypatch):
    """Requests that are signed an hour ago are refused at first hand: S3's error, and no unknown outcome."""
    fenced.object("r").put(b"before", A)
    faulty.put(b"mine", A)
    monkeypatch.setattr("botocore.auth.get_current_datetime", _an_hour_ago)
    with pytest.raises(ClientError, match="RequestTimeTooSkewed"):
        faulty.put(b"x", A)
    monkeypatch.undo()
    assert fenced.object("r").get().read() == b"mine"


def _an_hour_ago(remove_tzinfo=True):
    return get_current_datetime(remove_tzinfo) - datetime.timedelta(hours=1)
