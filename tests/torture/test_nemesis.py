"""A run of the nemesis breaks nothing and counts; each sabotage is caught; what is kept is judged."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sinkfence.cli import torture as cli
from sinkfence_trials.history import read
from sinkfence_trials.servers import binaries
from sinkfence_trials.torture import trial as trial_module
from sinkfence_trials.torture.destinations import SINKS
from sinkfence_trials.torture.failover import Primary
from sinkfence_trials.torture.nemesis import KINDS
from sinkfence_trials.torture.nursery import Nursery
from sinkfence_trials.torture.places import Bucket, Places, places
from sinkfence_trials.torture.run import Run
from sinkfence_trials.torture.sabotage import SABOTAGES
from sinkfence_trials.torture.serving import Service
from sinkfence_trials.torture.show import Wanted, torture
from sinkfence_trials.torture.stops import Place, Stop
from sinkfence_trials.torture.trial import RESTORE, Trial
from sinkfence_trials.torture.verdict import FINE, INCONCLUSIVE, About, judge
from sinkfence_trials.torture.victim import Victim

PAGE = Path(__file__).parents[2] / "docs/how-to/torture-your-own.md"

PROGRAM = "from sinkfence.cli import main; main()"

SLOW = pytest.mark.timeout(400)  # on a busy host a run takes up to four times its seconds


def has_pg_basebackup() -> bool:
    """Whether our own PostgreSQL can have a standby."""
    return (binaries.find_postgres() / "bin/pg_basebackup").exists()


@pytest.fixture
def there(postgres_server: Any, s3_server: Any) -> Iterator[Places]:
    """A user's servers: a database, and the bucket of all tests."""
    dsn = postgres_server.create_database()
    with places(postgres_dsn=dsn, bucket=Bucket.on(s3_server)) as opened:
        yield opened
    postgres_server.drop_database(dsn)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `sinkfence torture check` says."""
    command = [sys.executable, "-c", PROGRAM, "torture", "check", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@SLOW
def test_nothing_is_broken_and_the_run_counts(tmp_path: Path) -> None:
    """Some seconds on servers of its own: every kind of fault takes place, and no invariant is broken."""
    said: list[str] = []
    into = tmp_path / "run"
    code = torture(Wanted(seconds=10, seed=1, into=into), said.append)
    assert code == FINE, "\n".join(said)
    verdict = judge(into)
    assert verdict.violations == []
    assert verdict.lacking == []
    assert ("PostgreSQL failover" in verdict.about.kinds) == has_pg_basebackup()
    assert set(verdict.about.kinds) >= {*KINDS[:5], "PostgreSQL kill", "S3 kill", "service kill", RESTORE}
    assert all(verdict.sometimes.faults[kind] for kind in verdict.about.kinds)
    assert {event.value["sink"] for event in verdict.events if event.f == "read"} == set(SINKS)
    assert said[0].startswith("seed 1:")
    assert said[-3] == "nothing was broken"
    assert "No rule was broken" in (into / "timeline.html").read_text()
    # Offline, and also of a copy in which one acknowledged effect is missing.
    (into / "timeline.html").unlink()
    done = check(into)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing was broken" in done.stdout
    assert "No rule was broken" in (into / "timeline.html").read_text()
    log = into / "service.jsonl"
    # Not the last one: the run may have ended before its answer came.
    told = {
        event.key
        for event in read(into.glob("worker-*.jsonl"))
        if (event.f, event.type) == ("write", "ok") and event.value.get("sink") == "http"
    }
    effects = log.read_text().splitlines(keepends=True)
    effects.remove(next(line for line in reversed(effects) if json.loads(line)["key"] in told))
    log.write_text("".join(effects))
    done = check(into)
    assert done.returncode == 1
    # Where another one built on it, that one comes without its base (D3).
    assert any(line.startswith("D5 ") for line in done.stdout.splitlines())
    assert "D5" in (into / "timeline.html").read_text()


@SLOW
@pytest.mark.parametrize("name", [name for name, its in SABOTAGES.items() if not its.loses])
def test_a_sabotage_is_caught_by_its_name(name: str, there: Places, nursery: Nursery, tmp_path: Path) -> None:
    """One worker goes round the check: the invariant that is named for it is found broken."""
    Trial(Run(tmp_path, 1, there, nursery), 30, sabotage=name).play(lambda *_: None)
    assert_caught(tmp_path)


@SLOW
@pytest.mark.skipif(not has_pg_basebackup(), reason="not run: there is no pg_basebackup")
def test_a_failover_that_loses_generations_is_caught(
    s3_server: Any, there: Places, nursery: Nursery, tmp_path: Path
) -> None:
    """A standby is promoted that lacks what was acknowledged, and work goes on: S7. Never on a user's."""
    with places(bucket=Bucket.on(s3_server)) as ours:
        Trial(Run(tmp_path, 1, ours, nursery), 30, sabotage="lossy-failover").play(lambda *_: None)
    assert_caught(tmp_path)
    with pytest.raises(ValueError, match="takes a PostgreSQL server of its own"):
        Trial(Run(tmp_path, 1, there, nursery), 30, sabotage="lossy-failover").play(lambda *_: None)


def test_the_page_lists_the_sabotages() -> None:
    """The how-to has each with the invariant that catches it, and the command's help names it."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| .* \| ([SD]\d) \|$", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {name: its.caught_by for name, its in SABOTAGES.items()}
    assert all(name in (cli.torture.__doc__ or "") for name in SABOTAGES)


def assert_caught(folder: Path) -> None:
    """What is kept there shows it, by the invariant that is named for it."""
    verdict = judge(folder)
    assert verdict.caught, "\n".join(verdict.lines())
    assert verdict.code == FINE


@SLOW
def test_a_users_servers(there: Places, nursery: Nursery, tmp_path: Path) -> None:
    """On a user's servers all has names of the run's own, no server is killed, and what stays is said."""
    (tmp_path / "service").mkdir()
    with closing(Service(tmp_path / "service")) as service:
        mine = replace(there, service=service.url)
        Trial(Run(tmp_path, 1, mine, nursery), 1).play(lambda *_: None)
    verdict = judge(tmp_path)
    assert verdict.violations == []
    assert verdict.sometimes.effects["http"] > 0
    assert "PostgreSQL kill" not in verdict.about.kinds
    for kind in ("PostgreSQL kill", "PostgreSQL failover", RESTORE, "S3 kill"):
        assert f"{kind}: it is not ours" in verdict.about.not_run
    assert any(there.run in what for what in verdict.about.left)
    with psycopg.connect(there.postgres) as conn:
        query = "SELECT job_id FROM sinkfence.mark"
        assert all(job.startswith(there.prefix) for (job,) in conn.execute(query))


@SLOW
def test_a_run_whose_observer_has_died_is_inconclusive(
    there: Places, nursery: Nursery, tmp_path: Path
) -> None:
    """A row that it cannot read ends it, and the run: what nobody saw is not blamed, and it says why."""
    trial = Trial(Run(tmp_path, 1, there, nursery), 60)
    row = "INSERT INTO torture_seen (kind, job_id) VALUES ('acquire', %s)"

    def spoil(*_: object) -> None:
        with psycopg.connect(there.postgres) as conn:
            conn.execute(row, (trial.jobs[0],))

    trial.play(spoil)
    verdict = judge(tmp_path)
    assert verdict.violations == []
    assert verdict.code == INCONCLUSIVE
    *_, said = verdict.lines()
    assert said.startswith("INCONCLUSIVE: broken off: its observer ended: AttributeError(")


@SLOW
def test_a_run_whose_nemesis_has_died_is_inconclusive(
    there: Places, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it died of ends the run, which says so: no fault came any more, and no rule is blamed."""

    def fails(*_: object) -> bool:
        raise OSError("no room for a socket")

    monkeypatch.setattr(Victim, "reset", fails)
    Trial(Run(tmp_path, 1, there, nursery), 60).play(lambda *_: None)
    verdict = judge(tmp_path)
    assert verdict.violations == []
    assert verdict.code == INCONCLUSIVE
    *_, said = verdict.lines()
    assert re.search(r"broken off: the nemesis of worker \d ended: OSError\('no room for a socket'\)", said)


@SLOW
def test_a_run_whose_server_stays_down_is_inconclusive(
    s3_server: Any, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is not started again after its kill: the run ends, and says which kill it was."""

    def fails(*_: object) -> None:
        raise TypeError("planted")

    with places(bucket=Bucket.on(s3_server)) as ours:
        trial = Trial(Run(tmp_path, 1, ours, nursery), 60)
        monkeypatch.setattr(Primary, "start", fails)
        monkeypatch.setattr(Primary, "fail_over", fails)
        trial.play(lambda *_: None)
    verdict = judge(tmp_path)
    assert verdict.violations == []
    assert verdict.code == INCONCLUSIVE
    *_, said = verdict.lines()
    assert "broken off: the server nemesis ended: TypeError('planted')" in said


@SLOW
def test_a_run_whose_last_look_fails_is_inconclusive(
    there: Places, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the observer reads is not there at the end: the run has no verdict, and no traceback."""
    monkeypatch.setattr(trial_module, "HEALING", 0.1)
    monkeypatch.setattr(trial_module, "LAST_LOOK", 0.1)

    def spoil(*_: object) -> None:
        with psycopg.connect(there.postgres) as conn:
            conn.execute("DROP TABLE IF EXISTS torture_seen CASCADE")

    Trial(Run(tmp_path, 1, there, nursery), 1).play(spoil)
    verdict = judge(tmp_path)
    assert verdict.violations == []
    assert verdict.code == INCONCLUSIVE
    *_, said = verdict.lines()
    assert said.startswith("INCONCLUSIVE: broken off: its observer ended: UndefinedTable(")


def test_a_request_that_nobody_overtook_was_not_held(there: Places, nursery: Nursery, tmp_path: Path) -> None:
    """A hold took place where somebody else had the job before the request arrived, and not otherwise."""
    victim = Victim("worker 1", {}, {"s3": ("127.0.0.1", 9)}, there.postgres, clock=None, nursery=nursery)
    with closing(victim):
        caught = Stop(Place(0, "request", 0))
        victim._caught = lambda *_: caught  # type: ignore[method-assign]
        victim.held = dict  # type: ignore[method-assign]
        assert not victim.hold("s3", "taken over", 0.1)
        assert caught.over.is_set()


def test_a_run_in_which_too_little_happened_is_inconclusive(tmp_path: Path) -> None:
    """A history without faults proves nothing: the exit code is 4, and what was lacking is said."""
    about = (
        '{"run": "r", "seed": 1, "kinds": ["pause"], "not_run": [], "left": [],'
        ' "sabotage": null, "caught_by": null}'
    )
    (tmp_path / "run.json").write_text(about)
    done = check(tmp_path)
    assert done.returncode == 4
    assert "INCONCLUSIVE: takeovers: 0 of at least 3" in done.stdout
    assert "no fault of the kind pause took place" in done.stdout
    shutil.rmtree(tmp_path)
    assert check(tmp_path).returncode == 2


@pytest.mark.parametrize(
    ("broken_off", "code", "said"),
    [("", 1, "NOT CAUGHT: stale-put"), ("its observer ended", 4, "INCONCLUSIVE: broken off: its observer")],
)
def test_a_sabotage_that_was_broken_off_is_not_called_uncaught(
    tmp_path: Path, broken_off: str, code: int, said: str
) -> None:
    """Who has not looked to the end can't say that nobody would have seen it."""
    About("r", 1, sabotage="stale-put", caught_by="D1", broken_off=broken_off).write(tmp_path)
    done = check(tmp_path)
    assert done.returncode == code
    assert said in done.stdout
