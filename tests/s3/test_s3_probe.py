"""The probe tells stores that enforce conditions from those that only look so."""

import os
import signal
import threading
import uuid

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

import sinkfence_s3.buckets
from sinkfence.errors import NotEnforced, StaleToken
from sinkfence.tokens import Token
from sinkfence_s3 import FencedBucket, doctor
from sinkfence_s3.delivery import SENDINGS
from sinkfence_s3.probe import RACERS, probe
from sinkfence_s3.trial import Trial

A, B = Token("j", 1, "a:1"), Token("j", 2, "b:1")


def test_a_real_store_passes_and_nothing_is_left_behind(s3_client, bucket_name, prefix):
    """It passes on a store that honours both conditions, and the probe's keys are gone."""
    assert probe(s3_client, bucket_name, prefix) is False
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []


def test_it_runs_once_per_process_before_the_first_write_and_not_for_readers(
    s3_client, bucket_name, prefix, count
):
    """A read needs no probe; two threads that write first share one; a later handle finds the verdict."""
    bucket = FencedBucket(s3_client, bucket_name, prefix=prefix)
    assert bucket.object("r").stat() is None
    assert count == ["GetObject"]
    start = threading.Barrier(2)

    def first(name):
        start.wait()
        bucket.object(name).put(b"x", A)

    threads = [threading.Thread(target=first, args=(name,)) for name in ("r1", "r2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.count("DeleteObject") == 4  # the keys of one probe
    count.clear()
    again = FencedBucket(s3_client, bucket_name, prefix=prefix)
    assert again.object("r3").put(b"x", A).requests == 2
    again.put_once("once", b"x", step="s")
    assert count == ["GetObject", "PutObject", "PutObject"]


@pytest.mark.parametrize(
    ("ignores", "words"),
    [
        ({"If-None-Match", "If-Match"}, "create if absent: accepted"),
        ({"If-None-Match"}, "create if absent: accepted"),
        ({"refusal"}, "create if absent: b'second' stands there instead of b'first'"),
        ({"If-Match"}, "swap if unchanged: accepted"),
        ({"missing"}, "swap of a missing key: accepted"),
        ({"content"}, "swap if unchanged: other bytes have the same ETag"),
    ],
)
def test_a_store_that_ignores_a_condition_is_refused_before_anything_is_written(
    toy, client_at, ignores, words
):
    """C29: fails closed: arm, put and put_once are NotEnforced, on each call, until the store is mended."""
    toy.ignores = ignores
    bucket = FencedBucket(client_at(toy.endpoint), "bkt", prefix=f"{words}/")
    for call in (
        lambda: bucket.object("r").put(b"x", A),
        lambda: bucket.object("r").arm(A),
        lambda: bucket.put_once("o", b"x", step="s"),
    ):
        with pytest.raises(NotEnforced, match=words):
            call()
    assert toy.objects == {}
    toy.ignores = set()
    assert bucket.object("r").put(b"x", A).seq == 1


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_proxy_that_drops_conditions_which_are_not_signed_is_found_out(
    client_at, proxy, bucket_name, prefix, header
):
    """Signature version 2 leaves them out: what passes the proxy is a valid request without a condition."""
    proxy.strips = (header.lower(),)
    client = client_at(proxy.endpoint, signature_version="s3")
    with pytest.raises(NotEnforced, match=f"{header} is ignored"):
        probe(client, bucket_name, prefix)


def test_a_store_that_tests_first_and_writes_later_is_refused(toy, client_at):
    """Conditions that are tested without holding anything pass every step but the races."""
    toy.gap = RACERS
    with pytest.raises(NotEnforced) as refusal:
        probe(client_at(toy.endpoint), "bkt")
    for race in ("race of creates", "race of swaps"):
        assert f"{race}: 4 of 4 writers were told that they had won" in str(refusal.value)


def test_a_store_that_wants_bare_etags_is_noticed_once(toy, client_at):
    """The probe learns how this store likes its ETags, and puts need no second try."""
    toy.bare = True
    thing = FencedBucket(client_at(toy.endpoint), "bkt").object("r")
    thing.put(b"x", A)
    assert thing.put(b"x", A).requests == 1


def test_every_handle_of_a_process_knows_the_form_that_was_found(toy, client_at):
    """One probe for all: none of them begins with a refusal."""
    toy.bare = True
    for name in ("r", "s"):
        thing = FencedBucket(client_at(toy.endpoint), "bkt").object(name)
        thing.put(b"x", A)
        assert thing.put(b"x", A).requests == 1


@pytest.mark.parametrize("probe", ["once", "never"])
def test_etags_never_go_bare_where_the_probe_saw_quotes_taken(toy, client_at, proxy_to, probe):
    """A store ignores what is no entity-tag to it: no stray 412 may have conditions sent without quotes."""
    toy.ignores = {"bare"}
    proxy = proxy_to(toy.endpoint)
    mine = FencedBucket(client_at(proxy.endpoint), "bkt", probe=probe).object("r")
    other = FencedBucket(client_at(toy.endpoint), "bkt", probe=probe).object("r")
    mine.arm(A)
    proxy.once("PUT", "forge", 412, b"<Error><Code>PreconditionFailed</Code></Error>")
    mine.put(b"mine", A)
    other.put(b"the new owner's", B)
    with pytest.raises(StaleToken):
        mine.put(b"mine, late", A)
    assert other.get().read() == b"the new owner's"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12 on: it is the point
def test_a_child_forked_during_the_probe_probes_by_itself(toy, client_at, aside):
    """The thread that would release the lock is not in the child."""
    bucket = FencedBucket(client_at(toy.endpoint), "bkt")
    toy.speaks.clear()
    with aside(lambda: bucket.object("r").put(b"x", A)):
        assert toy.asked.wait(20)
        child = os.fork()
        if child == 0:
            try:
                bucket.object("s").put(b"x", A)
                os._exit(0)
            finally:
                os._exit(1)
        toy.speaks.set()
    ended = threading.Event()
    killer = threading.Timer(20, lambda: ended.is_set() or os.kill(child, signal.SIGKILL))
    killer.start()
    _, status = os.waitpid(child, 0)
    ended.set()
    killer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_store_that_cannot_be_asked_is_not_judged(toy, client_at):
    """No access, or no clear answer: the client's own error and no verdict; 501 is one."""
    for answer in ((403, "AccessDenied"), (500, "InternalError")):
        toy.answers = {"PUT": answer}
        with pytest.raises(ClientError, match=answer[1]):
            FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)
    toy.answers = {"PUT": (501, "NotImplemented")}
    with pytest.raises(NotEnforced, match="create if absent: refused"):
        FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)


def test_a_race_that_nobody_won_is_a_broken_store(toy, client_at):
    """Each racer heard 412, although nobody stood in its way: such a store would refuse every owner."""
    toy.answers = {"racers": (412, "PreconditionFailed")}
    with pytest.raises(NotEnforced) as refusal:
        FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)
    for problem in (
        "race of creates: None stands there instead of b'racer 0'",
        "race of swaps: b'base' stands there instead of b'racer 0'",
    ):
        assert problem in str(refusal.value)
    assert toy.objects == {}


def test_a_race_that_ended_in_errors_alone_is_not_judged(toy, client_at):
    """Each racer heard 500, and none stands there: the store's own error, as perhaps nobody came to race."""
    toy.answers = {"racers": (500, "InternalError")}
    with pytest.raises(ClientError, match="InternalError"):
        FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)
    assert toy.objects == {}


def test_a_store_that_does_not_answer_is_given_up(toy, client_at, monkeypatch):
    """Whatever timeouts the client has, a step has its own: no verdict then, and nothing written."""
    monkeypatch.setattr("sinkfence_s3.trial.PATIENCE", 0.2)
    monkeypatch.setattr("sinkfence_s3.trial.GRACE", 0.2)
    toy.speaks.clear()
    with pytest.raises(TimeoutError, match=r"gave no answer within .* s \(create if absent\)"):
        FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)
    assert toy.objects == {}
    toy.speaks.set()


@pytest.mark.parametrize("ask", [probe, doctor])
def test_it_is_interrupted_in_its_races_and_leaves_nothing_behind(
    s3_client, bucket_name, prefix, monkeypatch, ask
):
    """Ctrl-C comes while racers write: they are waited for, nobody begins to write, all keys are deleted."""
    cleaning, once = threading.Event(), threading.Lock()

    def hold(params, **_):
        if "/creates-" in params["url_path"]:
            if once.acquire(blocking=False):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            assert cleaning.wait(20)

    clean = Trial.clean
    monkeypatch.setattr(Trial, "clean", lambda trial: (cleaning.set(), clean(trial)))
    s3_client.meta.events.register("before-call.s3.PutObject", hold)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(s3_client, bucket_name, prefix)
    finally:
        s3_client.meta.events.unregister("before-call.s3.PutObject", hold)
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []


def test_clean_waits_for_whatever_may_make_something(s3_client, bucket_name, prefix, aside, monkeypatch):
    """A copy that is under way, say, makes a key that is deleted; afterwards none is begun."""
    trial = Trial(s3_client, bucket_name, prefix)
    under_way, over = threading.Event(), threading.Event()
    wait_for = trial._at_rest.wait_for
    monkeypatch.setattr(trial._at_rest, "wait_for", lambda *what: (over.set(), wait_for(*what)))

    def copy(**where):
        under_way.set()
        assert over.wait(20)
        return s3_client.put_object(Body=b"late", **where)

    with aside(lambda: trial.send("copy", copy)) as copied:
        assert under_way.wait(20)
        trial.clean()
    assert copied() is None
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []
    with pytest.raises(TimeoutError, match="the probe is over"):
        trial.send("copy", pytest.fail)


def test_a_race_of_swaps_that_has_no_base_is_none(client_at, proxy, bucket_name, prefix):
    """Its racers would create the key, and nothing would be known of swaps."""
    proxy.once("PUT", "forge", 412, b"<Error><Code>PreconditionFailed</Code></Error>", where="/swaps-")
    with pytest.raises(NotEnforced, match="race of swaps: the key to swap could not be made"):
        probe(client_at(proxy.endpoint), bucket_name, prefix)
    assert proxy.rules == []


@pytest.mark.parametrize("fault", [("lose reply",), ("apply, then forge", 500, b"<html>oops")])
def test_what_may_have_been_made_is_deleted_too(s3_client, client_at, proxy, bucket_name, prefix, fault):
    """Puts whose answers were lost or unclear: no verdict, and nothing is left behind."""
    for _ in range(SENDINGS):
        proxy.once("PUT", *fault, where="/create-")
    with pytest.raises((ClientError, HTTPClientError)):
        probe(client_at(proxy.endpoint), bucket_name, prefix)
    assert proxy.rules == []
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []


FAULTS = {
    "429": ("forge", 429, b"<Error><Code>TooManyRequests</Code></Error>"),
    "slow down": ("forge", 503, b"<Error><Code>SlowDown</Code></Error>"),
    "answer lost": ("lose reply",),
    "500, applied": ("apply, then forge", 500, b"<Error><Code>InternalError</Code></Error>"),
}


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("before", [0, 1, 4])
def test_what_fails_in_passing_is_tried_again(
    s3_client, client_at, proxy, bucket_name, prefix, monkeypatch, before, fault, attempts
):
    """Of what has to succeed, and what to be refused; with boto3's repetition or without."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    for _ in range(before):
        proxy.once("PUT", "pass", where="sinkfence-probe")
    proxy.once("PUT", *FAULTS[fault], where="sinkfence-probe")
    client = client_at(proxy.endpoint, retries={"total_max_attempts": attempts})
    assert FencedBucket(client, bucket_name, prefix=prefix).object("r").put(b"x", A).seq == 1
    assert proxy.rules == []
    left = s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix)["Contents"]
    assert [each["Key"] for each in left] == [f"{prefix}r"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_made_is_deleted_all_the_same(s3_client, client_at, proxy, bucket_name, prefix, fault):
    """A deletion that fails in passing is sent again."""
    proxy.once("DELETE", *FAULTS[fault])
    probe(client_at(proxy.endpoint), bucket_name, prefix)
    assert proxy.rules == []
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []


@pytest.mark.parametrize("fault", ["429", "slow down"])
@pytest.mark.parametrize("race", ["creates", "swaps"])
def test_a_race_that_nobody_could_enter_is_run_again(client_at, proxy, bucket_name, prefix, race, fault):
    """All racers were asked to come later: that says nothing of the store's conditions."""
    if race == "swaps":
        proxy.once("PUT", "pass", where="/swaps-")
    for _ in range(RACERS):
        proxy.once("PUT", *FAULTS[fault], where=f"/{race}-")
    assert probe(client_at(proxy.endpoint), bucket_name, prefix) is False
    assert proxy.rules == []


@pytest.mark.parametrize(("attempts", "sendings"), [(1, SENDINGS), (3, 3)])
def test_a_store_that_stays_busy_is_not_judged_and_nothing_is_put(
    s3_client, client_at, proxy, bucket_name, prefix, monkeypatch, attempts, sendings
):
    """The client's error, with a note; what boto3 has repeated is left at that. The next write finds out."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    for _ in range(sendings):
        proxy.once("PUT", *FAULTS["slow down"])
    client = client_at(proxy.endpoint, retries={"total_max_attempts": attempts})
    thing = FencedBucket(client, bucket_name, prefix=prefix).object("r")
    with pytest.raises(ClientError, match="SlowDown") as busy:
        thing.put(b"x", A)
    assert "nothing was put" in "".join(busy.value.__notes__)
    assert proxy.rules == []
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []
    assert thing.put(b"x", A).seq == 1


def test_an_answer_without_an_etag_is_no_refusal(toy, client_at):
    """Something in between strips it: it is said so, and not that the key was refused."""
    toy.form = ""
    with pytest.raises(NotEnforced, match="gives the ETag ''"):
        FencedBucket(client_at(toy.endpoint), "bkt").object("r").put(b"x", A)
    assert toy.objects == {}


def test_a_store_that_cannot_be_reached_is_asked_once(client_at):
    """The address is wrong, most likely: boto3's own error, and soon."""
    client, asked = client_at("http://127.0.0.1:1"), []
    client.meta.events.register("before-send.s3", lambda **_: asked.append(1))
    with pytest.raises(EndpointConnectionError):
        FencedBucket(client, "bkt").object("r").put(b"x", A)
    assert asked == [1]


def test_a_bucket_that_keeps_versions_is_judged_by_its_races_and_cleaned_up(s3_client, bucket_name):
    """Versioning is not judged; the probe removes its versions and leaves no delete markers."""
    name = f"versioned-{uuid.uuid4()}"
    s3_client.create_bucket(Bucket=name)
    s3_client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    probe(s3_client, name)
    left = s3_client.list_object_versions(Bucket=name)
    assert left.get("Versions", []) == left.get("DeleteMarkers", []) == []


def test_the_verdicts_of_other_prefixes_and_endpoints_are_their_own(toy, client_at):
    """C29: cached per endpoint, bucket and prefix."""
    client = client_at(toy.endpoint)
    FencedBucket(client, "bkt", prefix="a/").object("r").put(b"x", A)
    toy.ignores = {"If-Match"}
    FencedBucket(client, "bkt", prefix="a/").object("r2").put(b"x", A)
    with pytest.raises(NotEnforced):
        FencedBucket(client, "bkt", prefix="b/").object("r").put(b"x", A)
    assert (toy.endpoint, "bkt", "a/") in sinkfence_s3.buckets._passed
    assert (toy.endpoint, "bkt", "b/") not in sinkfence_s3.buckets._passed
