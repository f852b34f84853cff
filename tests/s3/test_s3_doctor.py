"""The doctor says of a bucket what it enforces, what it doesn't, what could not be tried, and what to do."""

import sys
import uuid
from email.utils import formatdate

import pytest

from sinkfence.errors import NotEnforced
from sinkfence_s3 import doctor


def grades(report):
    """The findings by name."""
    return {each.name: each.grade for each in report.findings}


def test_a_real_store_is_enforced_in_every_mode_and_left_as_it_was(s3_client, bucket_name, prefix):
    """All that was tried is listed, and gone; equal bytes have equal ETags here, which is worth a word."""
    report = doctor(s3_client, bucket_name, prefix)
    report.check()
    assert (report.fenced, report.holds("put_once")) == (True, True)
    assert {name for name, grade in grades(report).items() if grade != "ok"} == {
        "equal bytes",
        "conditional delete",
        "conditional copy",
    }
    assert s3_client.list_objects_v2(Bucket=bucket_name, Prefix=prefix).get("Contents", []) == []
    said = str(report)
    assert said.splitlines()[0].startswith(f"bucket {bucket_name!r} at {s3_client.meta.endpoint_url}")
    assert "  ok      race of swaps: enforced\n" in said
    assert "equal bytes: have equal ETags: If-Match on objects of your own is no fence" in said
    for kind in ("delete", "copy"):
        assert (
            f"  note    conditional {kind}: refused under a condition that does not hold; not raced" in said
        )
    assert said.endswith("  ok      put_once: enforced\nfenced")


@pytest.mark.parametrize(
    ("ignores", "broken"),
    [
        ({"If-None-Match"}, {"create if absent"}),
        ({"If-Match"}, {"swap if unchanged", "swap of a missing key"}),
        ({"missing"}, {"swap of a missing key"}),
        ({"metadata"}, {"metadata"}),
    ],
)
def test_what_a_store_ignores_is_named_with_what_to_do(toy, client_at, ignores, broken):
    """C29: what is ignored is broken (`put_once` alone: weak), and what rests on it is not enforced."""
    toy.ignores = ignores
    report = doctor(client_at(toy.endpoint), "bkt")
    bad = {each.name for each in report.findings if each.grade in ("broken", "weak") and each.advice}
    assert bad == broken
    assert (report.fenced, report.holds("put_once")) == (broken == {"metadata"}, False)
    if not report.fenced:
        with pytest.raises(NotEnforced, match="NOT FENCED"):
            report.check()
    assert toy.objects == {}


def test_a_store_that_tests_first_and_writes_later_loses_its_races(toy, client_at):
    """All steps but the races pass there."""
    toy.gap = 4
    report = doctor(client_at(toy.endpoint), "bkt")
    assert {name for name, grade in grades(report).items() if grade == "broken"} == {
        "race of creates",
        "race of swaps",
        "put_once",
    }
    assert not report.fenced


def test_what_may_not_be_tried_is_unknown_and_enforced_is_not_claimed(toy, client_at):
    """Forbidden: S3's own words, the permission that is missing, and no claim."""
    toy.answers = {"GET": (403, "AccessDenied")}
    report = doctor(client_at(toy.endpoint), "bkt")
    assert grades(report)["create if absent"] == "unknown"
    assert (report.fenced, report.holds("put_once")) == (False, False)
    assert "s3:ListBucket" in str(report)


@pytest.mark.parametrize(
    "answer",
    [(403, "SignatureDoesNotMatch"), (403, "AccessDenied"), (404, "NoSuchBucket"), (429, "SlowDown")],
)
def test_nothing_is_claimed_of_a_bucket_where_nothing_could_be_made(toy, client_at, answer):
    """A wrong secret, say: no finding is ok, neither about the deleting of nothing nor about ETags."""
    toy.answers = dict.fromkeys(("PUT", "GET", "HEAD", "DELETE"), answer)
    found = grades(doctor(client_at(toy.endpoint), "bkt"))
    assert "ok" not in found.values()
    assert {found[name] for name in ("create if absent", "deleting", "ETags in conditions")} == {"unknown"}


def test_a_store_that_does_not_answer_has_its_time_and_no_more(toy, client_at, monkeypatch):
    """Each step ends by itself, and says so."""
    monkeypatch.setattr("sinkfence_s3.trial.PATIENCE", 0.1)
    monkeypatch.setattr("sinkfence_s3.trial.GRACE", 0.1)
    toy.speaks.clear()
    report = doctor(client_at(toy.endpoint), "bkt")
    assert grades(report)["create if absent"] == "unknown"
    assert "gave no answer within" in str(report)
    toy.speaks.set()


def test_what_is_of_interest_and_no_condition_is_a_note(toy, client_at):
    """ETags that want no quotes, a clock that is off, keys that may not be deleted: noted, and enforced."""
    toy.bare = True
    toy.date = formatdate(0, usegmt=True)
    toy.answers = {"DELETE": (403, "AccessDenied")}
    report = doctor(client_at(toy.endpoint), "bkt")
    assert report.fenced
    assert {grades(report)[name] for name in ("ETags in conditions", "clock", "deleting")} == {"note"}
    said = str(report)
    assert "only without their quotes" in said
    assert "S3 refuses requests from 900 s on" in said
    assert "allow s3:DeleteObject" in said


def test_conditions_that_nothing_here_rests_on_are_told_of(toy, client_at):
    """A delete that ignores its condition, a copy that is refused and truncates: noted, and no more."""
    report = doctor(client_at(toy.endpoint), "bkt")
    assert "conditional delete: accepted under a condition that does not hold: None stands there" in str(
        report
    )
    assert report.fenced
    toy.ignores = {"refusal"}
    report = doctor(client_at(toy.endpoint), "bkt")
    assert "conditional copy: refused under a condition that does not hold: b'' stands there" in str(report)
    assert {grades(report)[name] for name in ("conditional delete", "conditional copy")} == {"note"}
    assert toy.objects == {}


def test_a_bucket_that_keeps_versions_is_noted_and_left_without_any(s3_client, monkeypatch):
    """Versioning costs space, and fences as well where the races are won."""
    monkeypatch.setattr(sys.modules["sinkfence_s3.doctor"], "ROUNDS", 1)
    name = f"versioned-{uuid.uuid4()}"
    s3_client.create_bucket(Bucket=name)
    s3_client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    report = doctor(s3_client, name)
    assert report.fenced
    assert "versioning: Enabled" in str(report)
    left = s3_client.list_object_versions(Bucket=name)
    assert left.get("Versions", []) == left.get("DeleteMarkers", []) == []
