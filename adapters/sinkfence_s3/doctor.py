"""What a bucket can and can't do for fenced objects, tried out on it, and said with what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from sinkfence.errors import NotEnforced
from sinkfence.findings import Finding, Grade, Report
from sinkfence_s3.answers import condition_failed
from sinkfence_s3.exchange import S3Client, endpoint
from sinkfence_s3.probe import CHECKS, races
from sinkfence_s3.trial import Problem, Trial, fresh

ROUNDS: Final = 5
"""How often each race is run: a store that tests first and writes later may pass one by chance."""
SKEW: Final = 60.0
"""Seconds by which the clocks may differ until the report says so; S3 refuses requests from 900 on."""

_USE_ANOTHER: Final = "use a store that honours If-None-Match and If-Match on PutObject, atomically"
_BY_WEIGHT: Final[tuple[Grade, ...]] = ("ok", "note", "weak", "unknown", "broken")


def doctor(client: S3Client, bucket: str, prefix: str = "") -> Report:
    """Try out what fenced objects rest on, and report it; everything under `PREFIX.sinkfence-probe/UUID/`.

    Takes some hundred small requests, and deletes what it has made. It goes further than the probe
    before the first write: it runs more races, and looks at metadata, versions and the clock as well. Each
    check has 30 seconds.

    Raises:
        TypeError, ValueError: no client, bucket or prefix for a FencedBucket.
    """
    trial = Trial(client, bucket, prefix)
    try:
        findings: list[Finding] = []
        for name, check in CHECKS.items():
            findings += _tried(trial, name, "unknown", partial(_conditions, name, check))
        if all(each.grade == "ok" for each in findings):
            findings += _tried(trial, "races", "unknown", _races)
        findings += [_quotes(trial, findings)]
        for name, look in _OTHER_CHECKS.items():
            findings += _tried(trial, name, "weak" if name == "metadata" else "note", look)
    finally:
        trial.clean()
    findings += [_cleaned(trial), _once(findings)]
    where = f"bucket {bucket!r} at {endpoint(client)}, tried under {trial.folder!r}"
    return Report(where, tuple(findings))


def _tried(
    trial: Trial, name: str, if_untried: Grade, check: Callable[[Trial], Finding | list[Finding]]
) -> list[Finding]:
    try:
        result = trial.run(name, check)
    except NotEnforced as refusal:
        return [Finding(name, "broken", str(refusal), _USE_ANOTHER)]
    except (ClientError, BotoCoreError, TimeoutError) as error:
        advice = [
            *getattr(error, "__notes__", ()),
            *(["mend that, and ask again"] * (if_untried == "unknown")),
        ]
        return [Finding(name, if_untried, f"could not be tried: {error}", "; ".join(advice))]
    return result if isinstance(result, list) else [result]


def _judged(name: str, problem: Problem) -> Finding:
    return Finding(name, "broken", problem, _USE_ANOTHER) if problem else Finding(name, "ok", "enforced")


def _conditions(name: str, check: Callable[[Trial], Problem], trial: Trial) -> Finding:
    return _judged(name, check(trial))


def _races(trial: Trial) -> list[Finding]:
    return [_judged(name, problem) for name, problem in races(trial, ROUNDS).items()]


def _quotes(trial: Trial, findings: list[Finding]) -> Finding:
    name = "ETags in conditions"
    if not any(each.name == "swap if unchanged" and each.grade == "ok" for each in findings):
        return Finding(name, "unknown", "could not be told: no swap was seen to work")
    if trial.bucket.bare:
        return Finding(name, "note", "taken only without their quotes, which is found out and done")
    return Finding(name, "ok", "taken as they are sent")


def _equal_bytes(trial: Trial) -> Finding:
    key = fresh("equal")
    first = trial.write(key, b"the same", None)
    second = None if first is None else trial.write(key, b"the same", first)
    if second is None:
        says = "could not be written twice"
    elif first == second:
        says = "have equal ETags: If-Match on objects of your own is no fence, on registers it is"
    else:
        says = "have another ETag at each write"
    return Finding("equal bytes", "note", says)


def _metadata(trial: Trial) -> Finding:
    key, sent = fresh("metadata"), {"sinkfence-write": "Aa-_09"}
    if trial.write(key, b"", None, Metadata=sent) is None:
        return Finding("metadata", "weak", "could not be written", _USE_ANOTHER)
    head = trial.bucket.client.head_object(Bucket=trial.bucket.name, Key=trial.folder + key)
    if head.get("Metadata") != sent:
        says = f"comes back as {head.get('Metadata')!r}: put_once would not know its own writes"
        return Finding("metadata", "weak", says, "look for a proxy that strips x-amz-meta- headers")
    return Finding("metadata", "ok", "comes back as it was sent")


def _delete(trial: Trial) -> Finding:
    key = fresh("delete")
    trial.write(key, b"there", None)
    wrong = {"IfMatch": '"d41d8cd98f00b204e9800998ecf8427e"'}
    return _unused_condition(trial, "delete", key, trial.bucket.client.delete_object, wrong)


def _copy(trial: Trial) -> Finding:
    key, other = fresh("copy"), fresh("copy-source")
    trial.write(other, b"a copy", None)
    trial.write(key, b"there", None)
    wrong = {"IfNoneMatch": "*", "CopySource": {"Bucket": trial.bucket.name, "Key": trial.folder + other}}
    return _unused_condition(trial, "copy", key, trial.bucket.client.copy_object, wrong)


def _unused_condition(
    trial: Trial, name: str, key: str, call: Callable[..., object], wrong: Mapping[str, object]
) -> Finding:
    """Report what becomes of a condition that fenced objects make no use of, but a user may want to."""
    try:
        trial.send(key, call, **wrong)
        did = "accepted"
    except ClientError as error:
        if not condition_failed(error):
            raise
        did = "refused"
    changed = trial.differs(key, b"there")
    says = f"{did} under a condition that does not hold" + (f": {changed}" if changed else "")
    return Finding(f"conditional {name}", "note", says + "; not raced, as fenced objects make no use of it")


def _clock(trial: Trial) -> Finding:
    before = time.time()
    head = trial.bucket.client.head_bucket(Bucket=trial.bucket.name)
    date = head["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        return Finding("clock", "note", "answers have no Date header")
    # Too small by less than a second, as the header has whole ones, or too large by what the request took.
    skew = parsedate_to_datetime(date).timestamp() - before
    if abs(skew) > SKEW:
        says = f"this host and the store differ by {abs(skew):.0f} s; S3 refuses requests from 900 s on"
        return Finding("clock", "note", says, "set this host's clock by NTP; fencing does not depend on it")
    return Finding("clock", "ok", "within a minute of the store's")


def _versioning(trial: Trial) -> Finding:
    state = trial.bucket.client.get_bucket_versioning(Bucket=trial.bucket.name).get("Status", "Off")
    if state == "Off":
        return Finding("versioning", "ok", "off")
    says = f"{state}: each write of a register keeps its predecessor, and some stores (Ceph) lose races there"
    advice = "prefer a bucket without versions, else have a lifecycle rule expire noncurrent ones"
    return Finding("versioning", "note", says, advice)


def _cleaned(trial: Trial) -> Finding:
    if not trial.made:
        return Finding("deleting", "unknown", "could not be tried: nothing was made that could be deleted")
    if not trial.left:
        return Finding("deleting", "ok", "allowed: what was tried here is gone")
    says = f"{trial.left} objects of a few bytes could not be deleted, and stay in {trial.folder!r}"
    return Finding(
        "deleting", "note", says, "allow s3:DeleteObject there, and collect needs it under `KEY.d/`"
    )


def _once(findings: list[Finding]) -> Finding:
    """Judge `put_once` by itself, which needs no swap; a `FencedBucket` has neither unless it has both."""
    grades: dict[str, Grade] = {each.name: each.grade for each in findings}
    # Races that were not tried are unknown: no fence is claimed then anyway.
    needs = [grades.get(name, "unknown") for name in ("create if absent", "race of creates", "metadata")]
    worst = _BY_WEIGHT[max(map(_BY_WEIGHT.index, needs))]
    return Finding("put_once", worst, "enforced" if worst == "ok" else "NOT ENFORCED, or not shown to be")


_OTHER_CHECKS: Final[Mapping[str, Callable[[Trial], Finding]]] = {
    "equal bytes": _equal_bytes,
    "clock": _clock,
    "versioning": _versioning,
    "metadata": _metadata,
    "conditional delete": _delete,
    "conditional copy": _copy,
}
