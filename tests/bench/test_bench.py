"""Each benchmark runs; how fast is no matter of tests."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import NAMES, run
from bench.race import CONTROL, Figure, Race, Result, at_least, at_most, play
from bench.report import plot, table


@pytest.mark.parametrize("name", [name for name in NAMES if name != "peers"])  # see test_peers.py
def test_a_benchmark_runs(name, tmp_path):
    """In sizes that are too small to tell anything, all of it runs, and its numbers are kept."""
    items = run(name, rounds=1, seed=1, small=True, out=tmp_path)
    races = [item for item in items if isinstance(item, Result)]
    assert races
    for race in races:
        assert all(value > 0 for standing in race.standings for value in standing.values)
    assert len(json.loads((tmp_path / f"{name}.json").read_text())["items"]) == len(items)


def turns(*values):
    """A contestant that returns these values over and over."""
    return itertools.cycle(values).__next__


def test_ratios_are_taken_within_a_round():
    """A slow moment that meets all of a round changes no ratio; the warm-up counts for nothing."""
    race = Race(
        "race",
        "ms",
        {"bare": turns(9, 9, 1, 1, 5, 5, 2, 2), "ours": turns(99, 2, 10, 4)},
        "bare",
        {"ours": at_most(1.9)},
    )
    bare, ours, control = play(race, rounds=3, seed=1).standings
    assert control.name == CONTROL
    assert ours.values == [2, 10, 4]
    assert (bare.values, control.values) == ([1, 5, 2], [1, 5, 2])
    assert (ours.ratio, ours.quartiles) == (2, (2, 2))
    assert control.ratios == [1, 1, 1]


def test_contestants_change_places():
    """Who comes first in a round is drawn anew each round, and drawn alike from the same seed."""

    def order(seed: int) -> str:
        said: list[str] = []
        contestants = {name: lambda name=name: said.append(name) or 1.0 for name in "abc"}
        play(Race("race", "ms", contestants, "a"), rounds=8, seed=seed)
        return "".join(said)

    assert order(1) == order(1) != order(2)
    assert len({order(1)[start : start + 4] for start in range(0, 36, 4)}) > 1


def test_a_table_says_what_was_missed():
    """Goals stand beside what was reached, for ratios and for figures."""
    race = Race(
        "race",
        "op/s",
        {"bare": turns(2.0), "ours": turns(1.0)},
        "bare",
        {"ours": at_least(0.9)},
        better="high",
    )
    shown = table(["a note", play(race, rounds=2, seed=1), Figure("WAL", 0, "bytes", at_most(0))])
    assert "a note" in shown
    assert "| ours | 1 | 0.500 | 0.500 to 0.500 | >= 0.9 | **missed** |" in shown
    assert "| A/A control | 2 | 1.000 |" in shown
    assert "- WAL: 0 bytes (goal <= 0: reached)" in shown


def test_a_race_is_drawn(tmp_path):
    """The plot is an SVG, drawn without a screen."""
    pytest.importorskip("matplotlib", reason="not run: no matplotlib (extra `bench`)")
    race = Race("race", "ms", {"bare": turns(1.0), "ours": turns(2.0)}, "bare", {"ours": at_most(1.5)})
    plot([play(race, rounds=3, seed=1), "a note"], tmp_path / "race.svg")
    assert "<svg" in (tmp_path / "race.svg").read_text()


def test_goals_are_of_contestants():
    """A goal for nobody would never be missed."""
    with pytest.raises(ValueError, match="contestants"):
        Race("race", "ms", {"bare": turns(1)}, "bare", {"ours": at_most(1)})


def test_an_unknown_benchmark_is_said():
    """The command line names those that there are."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent, "nonesuch"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no benchmark nonesuch" in done.stderr
    assert "Traceback" not in done.stderr
