"""What a report says, and what it never says."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from toy_sinks import CLAIMS, CheckThenApply, Harness, NoCheck, Sink

from sinkfence import Leases
from sinkfence.errors import LeaseLost, StaleToken
from sinkfence.marks import MemoryMarks
from sinkfence.stores.memory import MemoryStore
from sinkfence.testing import (
    HandClock,
    SinkCapabilities,
    StoreCapabilities,
    exercise_sink,
    fake_lease,
    sink_contract,
    store_contract,
)
from sinkfence.tokens import Token

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contract.md"


def test_what_is_not_claimed_is_said_and_not_run():
    """A capability that is missing is printed with its meaning; what needs it is not run, and not passed."""
    report = exercise_sink(Harness(CheckThenApply, SinkCapabilities(history=True)), examples=2)
    text = str(report)
    assert "without atomic: door only, not a fence" in text
    assert "not run  D1 delayed-refused: not claimed: atomic" in text
    assert "D1 delayed-refused" not in {result.promise for result in report.passed}
    assert report.ok  # it keeps what it claims, which is little


def test_a_report_of_nothing_is_not_ok():
    """Where nothing could be tried, nothing is vouched for."""
    report = exercise_sink(Harness(Sink, SinkCapabilities()), only=["D4 duplicate-once"])
    assert not report.failed
    assert not report.ok
    with pytest.raises(AssertionError, match="0 passed, 0 failed, 1 not run"):
        report.check()


def test_a_failure_is_told_as_what_was_seen():
    """A broken promise names itself, says what it is, and what was seen; the JSON has the same."""
    report = exercise_sink(Harness(NoCheck), only=["D1 stale-refused"], subject="toy")
    with pytest.raises(AssertionError, match="failed   D1 stale-refused: A write below the mark"):
        report.results[0].check()
    with pytest.raises(AssertionError, match="a write of 7 after one of 8 was accepted"):
        report.check()
    told = json.loads(report.to_json())
    assert (told["subject"], told["ok"], told["without"]) == ("toy", False, list(report.without))
    assert told["results"][0]["outcome"] == "failed"
    assert pickle.loads(pickle.dumps(report)) == report


def test_an_unknown_promise_is_refused():
    """A misspelt id is no silent success."""
    with pytest.raises(ValueError, match="D1 stale"):
        exercise_sink(Harness(), only=["D1 stale"])


def test_a_harness_that_never_pauses_is_found_out():
    """Without a pause nothing is known of delayed writes: not run, whatever is claimed."""

    class Hasty(Harness):
        def write(self, sink, bearer, value, step, between):
            sink.write(bearer, value, step, lambda: None)

    report = exercise_sink(Hasty(CheckThenApply), only=["D1 delayed-refused", "D9 delayed-after-arm"])
    assert [result.outcome for result in report.results] == ["not run"] * 2
    assert "between()" in report.results[0].why


def test_an_arming_that_waits_may_be_declared():
    """Where a write under way keeps the successor waiting, the old write comes first or is refused."""

    class Locked(Sink):
        def write(self, bearer, value, step, between):
            with self.there.lock:
                super().write(bearer, value, step, between)

    claims = SinkCapabilities(atomic=True, durable=True, concurrent=True, keys=True, history=True)
    report = exercise_sink(Harness(Locked, claims), examples=2)
    report.check()
    assert [result.promise for result in report.not_run] == ["L2 arm-not-kept-waiting"]


def test_a_sink_of_which_only_the_last_effect_can_be_read():
    """Without history all is judged by the last effect; a sound sink passes, one without check does not."""

    class Last(Harness):
        def truth(self, job_id):
            return super().truth(job_id)[-1:]

    claims = SinkCapabilities(atomic=True, durable=True, nonblocking=True, concurrent=True, keys=True)
    exercise_sink(Last(Sink, claims), examples=2).check()
    report = exercise_sink(Last(CheckThenApply, claims), only=["D1 delayed-refused"])
    assert report.failed


def test_without_hypothesis_random_orders_are_not_run():
    """The kit needs the standard library alone; what needs more is reported as not run."""
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from toy_sinks import Harness; from toy_stores import Harness as Store\n"
        "from sinkfence.testing import exercise_sink, exercise_store\n"
        "for report in (exercise_sink(Harness()), exercise_store(Store())):\n"
        "    report.check(); print(*(result for result in report.not_run))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    why = "any-order: hypothesis is not installed: pip install hypothesis"
    assert done.stdout.splitlines() == [f"not run  D1 {why}", f"not run  S1 {why}"]


def test_importing_the_kit_loads_the_standard_library_alone():
    """Authors' tests get nothing that they did not ask for, Hypothesis neither."""
    script = (
        "import sys\nbefore = set(sys.modules)\nimport sinkfence.testing\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(loaded - sys.stdlib_module_names - {'sinkfence'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ids_are_unique_and_on_their_page():
    """Every promise and every capability has its line on the page, word for word."""
    text = PAGE.read_text()
    promises = [*sink_contract, *store_contract]
    assert len({promise.id for promise in promises}) == len(promises)
    lines = [f"| {promise.id} | {promise.says} | {', '.join(promise.needs)} |" for promise in promises]
    for claims in (SinkCapabilities, StoreCapabilities):
        lines += [f"| {claim.name} | {claim.metadata['without']} |" for claim in fields(claims)]
    assert [line for line in lines if line not in text] == []
    assert text.count("\n| ") == len(lines) + 4 * 2


def test_a_fake_lease_ends_as_a_lease_does():
    """Its token is there until its time is over or a sink refuses it."""
    clock = HandClock()
    lease = fake_lease("job", 7, "a:1", ttl=30, clock=clock)
    assert lease.token == Token("job", 7, "a:1")
    assert (lease.job_id, lease.generation, lease.remaining()) == ("job", 7, 30.0)
    assert lease.key("step") == lease.token.key("step")
    lease.lose(StaleToken(Token("job", 6, "z:9"), 7))
    assert not lease.lost.is_set()
    clock.advance(30)
    with pytest.raises(LeaseLost, match="term is over"):
        _ = lease.token
    assert lease.remaining() == 0.0

    marks, stale = MemoryMarks(), fake_lease("job", 6)
    marks.arm(Token("job", 7, "a:1"))
    with pytest.raises(StaleToken) as refusal:
        marks.arm(stale)
    assert stale.refusals == [refusal.value]
    assert stale.lost.is_set()
    with pytest.raises(LeaseLost, match="refused"):
        _ = stale.token


def test_a_fake_lease_has_what_a_lease_has():
    """What a sink or a worker reads of a lease is there under the same names."""
    with Leases(MemoryStore()) as leases:
        lease = leases.acquire("job")
        own = {name for name in dir(fake_lease()) if not name.startswith("_")} - {"refusals"}
        assert own <= set(dir(lease))


def test_claims_are_all_tried():
    """No capability is left that nothing asks for."""
    asked = {name for promise in sink_contract for name in promise.needs} | {"needs_arm", "history"}
    assert asked == {claim.name for claim in fields(CLAIMS)}
    asked = {name for promise in store_contract for name in promise.needs}
    assert asked == {claim.name for claim in fields(StoreCapabilities)}
