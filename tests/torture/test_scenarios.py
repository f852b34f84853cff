"""Each named scenario is played with real processes and servers; with workers that go round the check, it is
told by name what they have broken.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sinkfence_trials.torture.nursery import Nursery
from sinkfence_trials.torture.places import Bucket, Places, places
from sinkfence_trials.torture.run import Run
from sinkfence_trials.torture.scenarios import SCENARIOS, Scenario, Verdict, clocks, perform, pooled
from sinkfence_trials.torture.scenarios.scene import Scene

PAGE = Path(__file__).parents[2] / "docs/reference/torture-scenarios.md"


@pytest.fixture(scope="module")
def there(postgres_server: Any, s3_server: Any) -> Iterator[Places]:
    """A database of its own, and the bucket of all tests."""
    dsn = postgres_server.create_database()
    with places(postgres_dsn=dsn, bucket=Bucket.on(s3_server)) as opened:
        yield opened
    postgres_server.drop_database(dsn)


@pytest.fixture
def run(there: Places, tmp_path: Path, nursery: Nursery) -> Run:
    """A run with a folder of its own, whose jobs nobody else has had."""
    return Run(tmp_path, 1, Places(f"{there.run}/{tmp_path.name}", there.postgres, there.bucket), nursery)


def played(name: str, run: Run, *, fenced: bool = True) -> Verdict:
    """What became of a scenario, where it can run."""
    verdict = perform(name, SCENARIOS[name], run, fenced=fenced)
    if verdict.word == "not run":
        pytest.skip(f"not run: {verdict.why}")
    return verdict


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_passes(name: str, run: Run) -> None:
    """The fault took place, and every invariant held; what cannot run here is skipped as not run."""
    verdict = played(name, run)
    assert (verdict.word, verdict.why) == ("passed", "")
    assert "No rule was broken" in (run.folder / name / "timeline.html").read_text()


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("stopped-transaction", "D3"),
        ("dead-upload", "D1"),
        ("dead-request", "D1"),
        ("killed-worker", "D4"),
        ("lossy-promotion", "S5"),
        ("fork", "D1"),
    ],
)
def test_going_round_the_check_is_seen(name: str, invariant: str, run: Run) -> None:
    """The same fault, with workers that do not ask: the checker tells which invariant is broken."""
    verdict = played(name, run, fenced=False)
    assert verdict.word == "violated"
    assert invariant in {violation.invariant for violation in verdict.violations}
    assert invariant in (run.folder / name / "timeline.html").read_text()


def test_a_fault_that_does_not_take_place_shows_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that are not wrong after all make the scenario inconclusive."""
    monkeypatch.setattr(clocks, "environment", lambda *_: {})
    verdict = played("jumping-clock", run)
    assert verdict.word == "inconclusive"
    assert "did not jump" in verdict.why


def test_what_is_missing_here_is_not_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PgBouncer, or without the right to mount, that scenario is not run, and says why."""
    monkeypatch.setattr(pooled, "PGBOUNCER", None)
    assert perform("pooler", SCENARIOS["pooler"], run) == Verdict(
        "not run", "there is no pgbouncer on the PATH"
    )
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    verdict = perform("disk-full", SCENARIOS["disk-full"], run)
    assert verdict == Verdict("not run", "to mount a small disk takes root, on Linux")


def test_a_point_that_does_not_hold_is_a_failure(run: Run) -> None:
    """A worker that is refused what it should get fails the scenario, though no invariant is broken."""

    def play(scene: Scene) -> None:
        worker = scene.actor("worker A")
        worker.holds()
        heard = scene.actor("worker B").does("try_hold")
        scene.expect(heard.get("error") is None, f"B heard {heard}")

    verdict = perform("one", Scenario("Two want a job.", play), run)
    assert verdict.word == "failed"
    assert "LeaseHeld" in verdict.why


def test_what_was_broken_off_is_not_blamed_for_what_nobody_looked_at(run: Run) -> None:
    """An effect that was acknowledged after the last look is not missing: on a slow host a wait may fail."""

    def play(scene: Scene) -> None:
        worker = scene.actor("worker A")
        worker.holds()
        assert worker.does("write")["outcome"] == "ok"
        raise TimeoutError("waited in vain")

    verdict = perform("one", Scenario("One works.", play), run)
    assert (verdict.word, verdict.violations) == ("inconclusive", ())
    kept = run.folder / "one"
    assert "No rule was broken" in (kept / "timeline.html").read_text()
    checked = sinkfence("torture", "check", str(kept))
    assert checked.returncode == 4
    assert "INCONCLUSIVE: broken off: waited in vain" in checked.stdout


def test_the_command_plays_and_lists_them(tmp_path: Path) -> None:
    """`--list` has them all; `--scenario` plays one in a folder that stays; a wrong name is a wrong usage."""
    listed = sinkfence("torture", "--list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(SCENARIOS)
    assert sinkfence("torture", "--scenario", "no such").returncode == 2
    done = sinkfence("torture", "--scenario", "fork", "--into", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^fork +passed ", done.stdout, re.MULTILINE)
    assert (tmp_path / "kept/fork/observer.jsonl").exists()
    checked = sinkfence("torture", "check", str(tmp_path / "kept/fork"))
    assert (checked.returncode, checked.stdout.splitlines()[0]) == (0, "nothing was broken")


def sinkfence(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-c", "from sinkfence.cli import main; main()", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_page_lists_them() -> None:
    """The reference has each scenario with the sentence that the command shows."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {name: scenario.sentence for name, scenario in SCENARIOS.items()}
