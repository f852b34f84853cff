"""What the story learns of a process that doesn't play its part."""

from __future__ import annotations

import pytest

from sinkfence_trials.demo.process import Process, ProcessFailed

PART = """
from sinkfence_trials.demo import child
child.enter()
child.tell("begins", number=7)
raise RuntimeError("the roof is on fire")
"""


@pytest.fixture
def part(monkeypatch, tmp_path):
    """A process that says one thing and fails."""
    (tmp_path / "part.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with Process("the part", "part") as process:
        process.begin({})
        yield process


def test_a_process_that_ends_early_is_told_of_with_its_last_words(part):
    """Waiting for a process that has ended raises, with the last line that it wrote to standard error."""
    assert part.hear("begins")["number"] == 7
    with pytest.raises(ProcessFailed, match="the part ended early: RuntimeError: the roof is on fire"):
        part.hear("ends")


def test_a_process_that_says_something_else_is_told_of(part):
    """A word that the story does not wait for raises, and is quoted."""
    with pytest.raises(
        ProcessFailed,
        match=r"the part told of \{'event': 'begins', 't': [0-9.]+, 'number': 7\}, and not of ends",
    ):
        part.hear("ends")


def test_a_process_that_has_ended_cannot_be_stopped(part):
    """Stopping a process that has ended raises, and does not wait for ever."""
    part.hear("begins")
    with pytest.raises(ProcessFailed, match="the part ended"):
        part.hear("ends")
    with pytest.raises(ProcessFailed, match="the part ended before it could be stopped"):
        part.stop()
