"""How the story is shown on different consoles."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from sinkfence_trials.demo.narrator import Narrator
from sinkfence_trials.demo.verdict import Verdict

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]")


def told(**settings):
    """Return what a console is sent by a short story."""
    console = Console(file=io.StringIO(), width=40, **settings)
    narrator, verdict = Narrator(console), Verdict()
    with narrator.progress("a server"):
        pass
    narrator.tell("worker A", "says something that is longer than the console is wide", "green")
    verdict.check("it is so", held=False, found="otherwise")
    narrator.judge(verdict, "All is well.", "green")
    return console.file.getvalue()


def test_in_a_pipe_it_is_plain_lines():
    """Piped, each thing told is one line of plain text, and progress is one too."""
    lines = told().splitlines()
    assert lines[0] == "starting a server ..."
    assert lines[1].endswith("s  worker A     says something that is longer than the console is wide")
    assert "  FAIL  it is so (found: otherwise)" in lines
    assert "All is well." not in lines
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("no_color", [False, True])
def test_in_a_terminal_it_is_coloured_unless_that_is_unwanted(monkeypatch, no_color):
    """In a terminal it is coloured, and with NO_COLOR it is not."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    text = told(force_terminal=True, color_system="standard")
    assert bool(COLOUR.search(text)) is not no_color
