"""The demo as its user sees it: what it says, its exit code, and what it leaves behind."""

from __future__ import annotations

import re
import signal

import pytest

REFUSALS = (
    r"worker A +COMMIT to PostgreSQL\n +REFUSED: 7 presented, 8 seen \(SQLSTATE SF001\)",
    r"worker A +PUT to S3\n +REFUSED: 7 presented, 8 seen \(status 412\)",
    r"worker A +request to the service\n +REFUSED: 7 presented, 8 seen \(412, stale-token;current=8\)",
    r"worker A +completion to the lease store\n +REFUSED: the store has issued generation 8 since",
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def drawn(page):
    """What is in the wide picture: effects of B, refusals of A, and lines from what broke a rule."""
    wide = page.partition('<svg class="timeline wide"')[2].partition("</svg>")[0]
    titles = re.findall("<title>(.*?)</title>", wide)
    return (
        sum("worker B, generation 8" in title and "took effect" in title for title in titles),
        sum("worker A, generation 7" in title and "refused" in title for title in titles),
        wide.count('class="wrong '),
    )


def test_each_late_effect_is_refused_by_its_destination(sinkfence, scratch, tmp_path):
    """With the checks on, the four late effects are refused where they arrive, and drawn; it exits 0."""
    page = tmp_path / "story.html"
    demo = sinkfence("demo", "--timeline", str(page))
    told, complaints = demo.communicate()
    assert (demo.returncode, complaints) == (0, ""), told
    for refusal in REFUSALS:
        assert re.search(refusal, told), told
    assert "The job: bill invoice-42, at a rate that has just changed." in told
    assert "FAIL" not in told
    assert "ACCEPTED" in told
    assert not CONTROL.search(told), "in a pipe it is plain text"
    assert [line for line in told.splitlines() if len(line) > 80 and str(page) not in line] == []
    assert told.endswith(f"The timeline: {page}\n")
    text = page.read_text(encoding="utf-8")
    assert drawn(text) == (3, 4, 0)
    assert "No rule was broken." in text
    assert list(scratch.iterdir()) == []


def test_without_the_checks_each_late_effect_does_its_damage(sinkfence, scratch, tmp_path):
    """With the checks off, the four late effects are accepted, the damage is shown, and drawn; it exits 0."""
    page = tmp_path / "story.html"
    demo = sinkfence("demo", "--unfenced", "--timeline", str(page))
    told, complaints = demo.communicate()
    assert (demo.returncode, complaints) == (0, ""), told
    assert "REFUSED" not in told
    assert "FAIL" not in told
    assert re.search(r"table +3 h at the old rate: 270, 3 h at the new rate: 300$", told, re.MULTILINE)
    assert re.search(r"object +3 h at the old rate: 270$", told, re.MULTILINE)
    assert re.search(r"charges +270 by worker A, 300 by worker B$", told, re.MULTILINE)
    assert re.search(r'record +done, generation 8, \{"total": 270\}$', told, re.MULTILINE)
    assert [line for line in told.splitlines() if len(line) > 80 and str(page) not in line] == []
    text = page.read_text(encoding="utf-8")
    assert drawn(text) == (3, 0, 4)
    assert "Rules were broken" in text
    assert list(scratch.iterdir()) == []


def test_a_timeline_that_cannot_be_written_is_a_wrong_usage(sinkfence, tmp_path):
    """A folder that is not there is told before anything is started."""
    demo = sinkfence("demo", "--timeline", str(tmp_path / "none" / "story.html"))
    told, complaints = demo.communicate()
    assert (demo.returncode, told) == (2, "")
    assert "is no folder" in complaints


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_ended_in_the_middle_leaves_nothing(sinkfence, scratch, watch, number):
    """Killed while worker A stands stopped, the demo leaves no process and no file behind."""
    demo = sinkfence("demo")
    assert any("is STOPPED" in line for line in demo.stdout), demo.stderr.read()
    left = watch(demo.pid)
    demo.send_signal(number)
    _, complaints = demo.communicate()
    assert "Traceback" not in complaints
    assert demo.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert left() == set()
    assert list(scratch.iterdir()) == []


def test_a_reader_that_goes_away_ends_the_demo_without_a_traceback(sinkfence, scratch):
    """When the pipe it writes to is closed, the demo clears up and says nothing more."""
    demo = sinkfence("demo")
    demo.stdout.readline()
    demo.stdout.close()
    assert demo.stderr.read() == ""
    assert demo.wait() != 0
    assert list(scratch.iterdir()) == []
