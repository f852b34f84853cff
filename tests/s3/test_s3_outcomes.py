"""What became of a put is read back, never guessed: lost answers, own successes that look like refusals."""

import io

import pytest
from botocore.exceptions import ClientError
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sinkfence import observe
from sinkfence.errors import LeaseLost, NotEnforced, OutcomeUnknown, SchemaMismatch, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket

A, B = Token("j", 3_000_000_001, "a:1"), Token("j", 3_000_000_002, "b:1")


@pytest.fixture(params=["create", "swap"])
def start(request, fenced):
    """The state before the put that goes wrong: nothing, or an earlier write of A; the next seq."""
    if request.param == "create":
        return 1
    return fenced.object("r").put(b"before", A).seq + 1


def test_a_lost_answer_is_a_success_and_reported_once(start, fenced, through, proxy):
    """C26: the PUT was applied and its answer lost: its write id is read back; nothing is put twice."""
    proxy.once("PUT", "lose reply")
    thing = through.object("r")
    written = thing.put(b"x", A, step="s")
    assert (written.seq, written.repeated, written.superseded, written.requests) == (start, False, False, 3)
    assert proxy.log == [("GET", 404 if start == 1 else 200), ("PUT", 200), ("GET", 200)]
    assert fenced.object("r").stat().etag == written.etag
    assert thing.put(b"y", A).requests == 1  # what was read back is remembered


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_boto3s_repetition_that_meets_its_own_success_is_a_success(
    start, fenced, proxy, client_at, bucket_name, prefix, mode
):
    """C26: boto3 repeats after the lost answer and gets 412 for its own success: applied, once."""
    client = client_at(proxy.endpoint, retries={"mode": mode, "total_max_attempts": 3})
    proxy.once("PUT", "lose reply")
    written = FencedBucket(client, bucket_name, prefix=prefix, probe="never").object("r").put(b"x", A)
    assert [each for each in proxy.log if each[0] == "PUT"] == [("PUT", 200), ("PUT", 412)]
    assert (written.seq, written.repeated, written.requests) == (start, False, 4)
    assert fenced.object("r").stat().seq == start


def test_an_error_after_boto3s_repetition_says_nothing_of_the_first_sending(
    start, fenced, proxy, client_at, bucket_name, prefix
):
    """The first sending was applied, its repetition meets expired credentials: applied all the same."""
    client = client_at(proxy.endpoint, retries={"mode": "standard", "total_max_attempts": 3})
    proxy.once("PUT", "lose reply")
    proxy.once("PUT", "forge", 403, b"<Error><Code>ExpiredToken</Code></Error>")
    written = FencedBucket(client, bucket_name, prefix=prefix, probe="never").object("r").put(b"x", A)
    assert (written.seq, written.repeated) == (start, False)


def test_a_request_that_never_arrived_is_sent_again(start, fenced, through, proxy):
    """The connection broke before S3 saw the PUT: the state is unchanged, the same request is sent again."""
    proxy.once("PUT", "reset")
    written = through.object("r").put(b"x", A)
    assert (written.seq, written.requests) == (start, 4)
    assert fenced.object("r").get().read() == b"x"


FORGED = [
    (500, b"<Error><Code>InternalError</Code></Error>"),
    (503, b"<Error><Code>SlowDown</Code></Error>"),
    (409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"),
    (412, b"<Error><Code>PreconditionFailed</Code></Error>"),
    (200, b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>m</Message></Error>"),
    (200, b""),
    (502, b"<html>bad gateway"),
]


@pytest.mark.parametrize(("status", "body"), FORGED)
@pytest.mark.parametrize("kind", ["forge", "apply, then forge"])
def test_errors_are_decided_by_what_stands_there(start, fenced, through, proxy, kind, status, body):
    """C28: 5xx, 409, 412, an error inside a 200, no ETag; applied or not: put exactly once."""
    proxy.once("PUT", kind, status, body)
    written = through.object("r").put(b"x", A)
    assert (written.seq, written.repeated) == (start, False)
    assert written.requests == (4 if kind == "forge" else 3)
    stat = fenced.object("r").stat()
    assert (stat.seq, stat.etag) == (start, written.etag)


def test_a_put_that_was_applied_before_a_newer_owner_came_is_a_success_that_lost_its_lease(
    fenced, through, proxy, holder, aside
):
    """A's PUT is applied, B writes before A hears of it: applied and superseded, and A's bearer is told."""
    stop = proxy.hold("PUT", "lose reply")
    bearer = holder(A)
    with aside(lambda: through.object("r").put(b"A's", bearer, step="s")) as late:
        assert stop.reached.wait(60)
        other = fenced.object("r").put(b"B's", B)
        stop.go.set()
    written = late()
    assert (written.seq, written.generation, written.superseded) == (1, A.generation, True)
    assert other.seq == 2
    assert [type(each) for each in bearer.told] == [StaleToken]
    assert fenced.object("r").get().read() == b"B's"


@pytest.fixture
def refusals(monkeypatch):
    """How many refusals of the S3 sink OpenTelemetry's SDK has counted."""
    reader = InMemoryMetricReader()
    meters = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr("opentelemetry.metrics.get_meter", meters.get_meter)
    observe._telemetry.cache_clear()

    def count():
        data = reader.get_metrics_data()
        metrics = [each for r in data.resource_metrics for scope in r.scope_metrics for each in scope.metrics]
        points = [
            p for each in metrics if each.name == "sinkfence.sink.refusals" for p in each.data.data_points
        ]
        return [(dict(point.attributes), point.value) for point in points]

    yield count
    observe._telemetry.cache_clear()
    meters.shutdown()


@pytest.mark.parametrize("act", ["arm", "put", "delete"])
def test_whatever_is_superseded_counts_as_one_refusal(fenced, through, proxy, holder, aside, refusals, act):
    """An act that was applied before a newer owner came has lost its lease: told once to all who listen."""
    bearer, thing = holder(A), through.object("r")
    if act == "delete":
        thing.put(b"A's", bearer)
    acts = {"arm": thing.arm, "put": lambda who: thing.put(b"late", who), "delete": thing.delete}
    stop = proxy.hold("PUT", "lose reply")
    with aside(lambda: acts[act](bearer)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        stop.go.set()
    late()
    assert [type(each) for each in bearer.told] == [StaleToken]
    assert refusals() == [({"sinkfence.sink": "s3", "error.type": "StaleToken"}, 1)]


def test_an_arming_that_was_overtaken_is_stale(fenced, through, proxy, holder, aside):
    """A's arming is applied, B arms before A hears of it: A must not begin."""
    stop = proxy.hold("PUT", "lose reply")
    bearer = holder(A)
    with aside(lambda: through.object("r").arm(bearer)) as late:
        assert stop.reached.wait(60)
        fenced.object("r").arm(B)
        stop.go.set()
    assert isinstance(late(), StaleToken)
    assert bearer.told == [late()]


def test_an_attempt_that_the_ring_has_forgotten_is_unknown(fenced, through, proxy, holder, aside):
    """64 writes after a put without an answer its fate is unknown, and the bearer is told."""
    stop = proxy.hold("PUT", "lose reply")
    bearer = holder(A)
    with aside(lambda: through.object("r").put(b"A's", bearer, step="s")) as late:
        assert stop.reached.wait(60)
        successor = fenced.object("r")
        for _ in range(64):
            successor.put(b"B's", B)
        stop.go.set()
    assert isinstance(late(), OutcomeUnknown)
    assert [each.earlier_attempt_unknown for each in bearer.told] == [True]


def test_a_refusal_at_first_hand_needs_no_ring(fenced, through, proxy, aside):
    """However many writes came between: a PUT that S3 itself refused was not applied: stale."""
    fenced.object("r").put(b"before", A)
    stop = proxy.hold("PUT", "hold request")
    with aside(lambda: through.object("r").put(b"A's", A, step="s")) as late:
        assert stop.reached.wait(60)
        successor = fenced.object("r")
        for _ in range(66):
            successor.put(b"B's", B)
        stop.go.set()
    assert type(late()) is StaleToken
    assert not late().earlier_attempt_unknown


@pytest.mark.parametrize("successor", [A, B, Token("k", 1, "k:1")])
def test_a_register_that_was_removed_meanwhile_leaves_an_earlier_attempt_unknown(
    fenced, through, proxy, s3_client, bucket_name, prefix, aside, holder, successor
):
    """Somebody removes the register while A's put has no answer, and another starts anew: never taken for
    applied or not; a stale A's bearer is told."""
    fenced.object("r").put(b"1", A)
    fenced.object("r").put(b"2", A)
    stop = proxy.hold("PUT", "lose reply")
    bearer = holder(A)
    with aside(lambda: through.object("r").put(b"A's", bearer)) as late:
        assert stop.reached.wait(60)
        s3_client.delete_object(Bucket=bucket_name, Key=prefix + "r")
        fenced.object("r").put(b"another's", successor)
        stop.go.set()
    assert type(late()) is OutcomeUnknown
    assert [type(each) for each in bearer.told] == ([StaleToken] if successor is B else [])
    assert all(each.earlier_attempt_unknown for each in bearer.told)


def test_a_register_that_was_removed_is_made_again_by_its_owner(fenced, s3_client, bucket_name, prefix):
    """If-Match on a missing key (412 here, 404 elsewhere) was not applied: the owner reads and creates."""
    thing = fenced.object("r")
    thing.put(b"1", A)
    s3_client.delete_object(Bucket=bucket_name, Key=prefix + "r")
    assert thing.put(b"2", A).seq == 1
    assert fenced.object("r").get().read() == b"2"


def test_a_store_that_never_answers_leaves_the_outcome_unknown(fenced, through, proxy):
    """The same request is sent a bounded number of times; then the outcome is unknown, not a failure."""
    for _ in range(4):
        proxy.once("PUT", "reset")
    with pytest.raises(OutcomeUnknown):
        through.object("r").put(b"x", A)
    assert fenced.object("r").stat() is None


def test_a_fate_that_cannot_be_read_is_unknown(fenced, through, proxy):
    """The PUT was applied, and neither answer nor reading came through; its step finds it later."""
    proxy.once("PUT", "lose reply")
    thing = through.object("r")
    proxy.once("GET", "pass")  # the read before the put
    for _ in range(3):
        proxy.once("GET", "reset")
    with pytest.raises(OutcomeUnknown):
        thing.put(b"x", A, step="s")
    assert through.object("r").put(b"x", A, step="s").repeated


def test_a_body_file_is_sent_from_where_it_stood_each_time(fenced, through, proxy):
    """C38: S3 finds the request signed too long ago: signed anew, it carries the same bytes."""
    file = io.BytesIO(bytes(range(200)))
    file.seek(100)
    proxy.once("PUT", "forge", 403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
    written = through.object("r").put(file, A)
    assert written.requests == 4
    assert fenced.object("r").get().read() == bytes(range(100, 200))


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [("forge", 403, LeaseLost), ("forge", 500, OutcomeUnknown), ("reset", 0, OutcomeUnknown)],
)
def test_the_lease_is_looked_at_again_before_a_request_is_repeated(
    fenced, through, proxy, kind, status, expected
):
    """C38: a term that ended meanwhile stops the repetition; what has no answer yet is unknown then."""

    class Ending:
        def __init__(self):
            self.looks = 0

        @property
        def token(self):
            self.looks += 1
            if proxy.rules:
                return A
            raise LeaseLost(A, "its term is over")

        def lose(self, reason):
            raise AssertionError

    proxy.once("PUT", kind, status, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
    with pytest.raises(expected):
        through.object("r").put(b"x", Ending())
    assert fenced.object("r").stat() is None


@pytest.mark.parametrize(("form", "bare"), [('"{}"', False), ("{}", False), ('"{}"', True), ("{}", True)])
def test_etags_travel_as_they_came_and_lose_their_quotes_only_for_a_store_that_wants_it(
    toy, client_at, form, bare
):
    """C33: quoted or not, an ETag goes back as it came; it goes bare only where the probe found so."""
    toy.form, toy.bare = form, bare
    thing = FencedBucket(client_at(toy.endpoint), "bkt").object("r")
    assert [thing.put(b"x", A).seq for _ in range(3)] == [1, 2, 3]
    assert thing.put(b"x", A).requests == 1
    with pytest.raises(StaleToken):
        thing.put(b"x", Token("j", 1, "o:1"))


@pytest.mark.parametrize("form", ['W/"{}"', "x" * 300, "\x7f"])
def test_a_weak_or_strange_etag_is_never_swapped_on(toy, client_at, form):
    """C33: a weak ETag may stand for two contents: nothing is sent under it."""
    toy.form = form
    thing = FencedBucket(client_at(toy.endpoint), "bkt", probe="never").object("r")
    thing.put(b"x", A)
    with pytest.raises(NotEnforced):
        thing.put(b"y", A)
    assert thing.get().read() == b"x"


def test_a_forbidden_read_is_never_taken_for_an_absent_key(toy, client_at):
    """403 for a missing key without list permission: boto3's error, with advice, and nothing written."""
    toy.answers = {"GET": (403, "AccessDenied"), "HEAD": (403, "AccessDenied")}
    bucket = FencedBucket(client_at(toy.endpoint), "bkt", probe="never")
    for call in (
        lambda: bucket.object("r").put(b"x", A),
        lambda: bucket.object("r").arm(A),
        lambda: bucket.object("r").get(),
        lambda: bucket.object("r").stat(),
    ):
        with pytest.raises(ClientError) as forbidden:
            call()
        assert "s3:ListBucket" in forbidden.value.__notes__[0]
    assert toy.objects == {}


def test_other_errors_of_the_client_pass_untouched(toy, client_at, s3_client):
    """No permission to write, no such bucket: boto3's own error, at once."""
    toy.answers = {"PUT": (403, "AccessDenied")}
    with pytest.raises(ClientError, match="AccessDenied"):
        FencedBucket(client_at(toy.endpoint), "bkt", probe="never").object("r").put(b"x", A)
    with pytest.raises(ClientError, match="NoSuchBucket"):
        FencedBucket(s3_client, "no-such-bucket", probe="never").object("r").put(b"x", A)


def test_the_same_bytes_under_another_etag_cost_an_owner_one_look(fenced, s3_client, bucket_name, prefix):
    """A migration or re-encryption changes the ETag of a register that nobody wrote to; its owner goes on."""
    thing = fenced.object("r")
    thing.put(b"one", A)
    key = next(
        found["Key"]
        for found in s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix)["Contents"]
        if found["Key"].endswith("r")
    )
    frame = s3_client.get_object(Bucket=bucket_name, Key=key)["Body"].read()
    upload = s3_client.create_multipart_upload(Bucket=bucket_name, Key=key)["UploadId"]
    where = {"Bucket": bucket_name, "Key": key, "UploadId": upload}
    part = s3_client.upload_part(**where, PartNumber=1, Body=frame)
    s3_client.complete_multipart_upload(
        **where, MultipartUpload={"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
    )
    assert thing.put(b"two", A).seq == 2
    assert thing.get().read() == b"two"


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_takeover_through_a_proxy_that_caches_reads_is_told_of_it(
    fenced, proxy, client_at, bucket_name, prefix, before
):
    """The probe passes, as it reads each key once. A new owner is shown what the old one has replaced."""
    proxy.caches = True
    a, b = (FencedBucket(client_at(proxy.endpoint), bucket_name, prefix=prefix).object("r") for _ in range(2))
    if before is not None:
        fenced.object("r").put(before, A)
    a.put(b"of the old owner", A)
    if before is None:
        with pytest.raises(SchemaMismatch, match="answer reads from its cache"):
            b.arm(B)
    else:
        with pytest.raises(ClientError, match="PreconditionFailed") as refusal:
            b.arm(B)
        assert "answer reads from its cache" in "".join(refusal.value.__notes__)
    assert fenced.object("r").get().read() == b"of the old owner"
