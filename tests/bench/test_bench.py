"""Each benchmark runs; how fast is no matter of tests."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from bench import page
from bench.__main__ import NAMES, run
from bench.drawing import draw
from bench.goals import AIMS, judge
from bench.race import CONTROL, Figure, Race, Result, at_least, at_most, play
from bench.report import Item, overview, read_json, table, write_json


@pytest.mark.parametrize("name", [name for name in NAMES if name != "peers"])  # see test_peers.py
def test_a_benchmark_runs(name, tmp_path):
    """In sizes that are too small to tell anything, all of it runs, and its numbers are kept."""
    items = run(name, rounds=1, seed=1, small=True, out=tmp_path)
    races = [item for item in items if isinstance(item, Result)]
    assert races
    for race in races:
        assert all(value > 0 for standing in race.standings for value in standing.values)
    assert len(json.loads((tmp_path / f"{name}.json").read_text())["items"]) == len(items)
    # What is kept for the page is of this benchmark, as it is now: so many races, with these goals.
    _, kept = read_json(page.KEPT / f"{name}.json")
    assert goals(kept) == goals(items)
    assert len([item for item in kept if isinstance(item, Result)]) == len(races)


def goals(items: list[Item]) -> list[str]:
    """The goals of races and figures, as they are written."""
    found = [item.goal for item in items if isinstance(item, Figure)]
    found += [each.goal for item in items if isinstance(item, Result) for each in item.standings]
    return [str(goal) for goal in found if goal is not None]


def test_every_goal_of_a_benchmark_is_one_of_the_design() -> None:
    """No goal that is measured is left out of the page's list, and each that is listed was measured."""
    for name in page.NAMES:
        _, items = read_json(page.KEPT / f"{name}.json")
        bounds = [aim for aim in AIMS if aim.bench == name and not aim.ahead_of]
        assert len(bounds) == len(goals(items)), name
    assert {aim.bench for aim in AIMS} == set(page.NAMES) == set(NAMES) - {"peers"}


def test_a_goal_is_judged_by_what_was_measured() -> None:
    """A goal that was not measured is an error, and is not taken for reached."""
    aim = next(aim for aim in AIMS if aim.ahead_of)
    for ours, met in ((2.0, True), (1.0, False), (0.5, False)):
        contestants = {"plain UPDATEs": turns(1.0), aim.name: turns(ours), "stormlock": turns(1.0)}
        race = play(Race(aim.title, "turns/s", contestants, "plain UPDATEs", better="high"), rounds=2, seed=1)
        assert judge(aim, [race]).met is met
    with pytest.raises(LookupError, match="has not measured"):
        judge(aim, [])


def test_the_page_is_made_of_the_results_that_are_kept() -> None:
    """Nobody has written numbers by hand: the page and its pictures are what the command writes."""
    assert (page.EXPLANATION / "numbers.md").read_text() == page.text(page.KEPT)
    for name, title in page.NAMES.items():
        races = [item for item in read_json(page.KEPT / f"{name}.json")[1] if isinstance(item, Result)]
        assert (page.KEPT / f"{name}.svg").read_text() == draw(races, f"{title}: the ratios of the table")


def test_results_are_read_as_they_were_written(tmp_path) -> None:
    """Notes, figures and races come back from their file, but for the digits that say nothing."""
    race = Race("race", "ms", {"bare": turns(1.0, 2.0), "ours": turns(3.0)}, "bare", {"ours": at_most(1.5)})
    items = [
        "a note",
        play(race, rounds=2, seed=1),
        Figure("WAL", 0.5, "bytes", at_most(0)),
        Figure("n", 1, ""),
    ]
    write_json(items, {"cores": 2}, tmp_path / "race.json")
    assert read_json(tmp_path / "race.json") == ({"cores": 2}, items)


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
    items = ["a note", play(race, rounds=2, seed=1), Figure("WAL", 0, "bytes", at_most(0))]
    for shown in (table(items), overview({"one": items})):
        assert "| ours | 1 | 0.500 (0.500 to 0.500) | >= 0.9: **missed** |" in shown
        assert "| A/A control | 2 | 1.000 " in shown
        assert "WAL | 0 bytes | | <= 0: reached |" in shown
    assert "a note" in table(items)


def test_a_race_is_drawn():
    """The picture is an SVG that says what it shows, and has a line for each contestant, and the goal."""
    race = Race("a < b", "ms", {"bare": turns(1.0), "ours": turns(2.0)}, "bare", {"ours": at_most(1.5)})
    drawn = xml.etree.ElementTree.fromstring(draw([play(race, rounds=3, seed=1)], "a picture"))
    assert drawn.get("aria-label") == "a picture"
    groups = [each for each in drawn if each.tag.endswith("}g")]
    assert [group[0].text for group in groups] == ["bare", "ours", CONTROL]
    assert [len([each for each in group if each.get("class") == "goal"]) for group in groups] == [0, 1, 0]


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
