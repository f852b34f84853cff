"""The page about the model names things that exist, and the verdicts that come out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from model.invariants import MEANING
from model.stories import report, verdict
from model.variants import VARIANTS

from sinkfence_postgres.installation import schema

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "model.md").read_text()
SQL = schema()


def table(heading):
    """The cells of the table under a heading, without its head."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


STEPS = table("Each step, and what does it")
NAMES = sorted(
    {name for row in STEPS for name in re.findall(r"(?<!SQL )`([a-z_]+(?:\.\w+)+)`", " ".join(row))}
)
FUNCTIONS = sorted({name for row in STEPS for name in re.findall(r"SQL `sinkfence\.(\w+)`", " ".join(row))})


def resolve(name):
    """The thing of this dotted name: the longest module, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_named_thing_exists(name):
    """Each dotted name of the table of steps can be imported."""
    assert callable(resolve(name))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_named_sql_function_exists(function):
    """Each SQL function of the table of steps is created by the schema."""
    assert re.search(rf"create (or replace )?function sinkfence\.{function}\(", SQL, re.IGNORECASE)


def test_the_table_of_steps_was_read():
    """The patterns above find the names that the table is about."""
    assert {"model.world.acquire", "sinkfence.marks.admit", "sinkfence_postgres.transaction"} <= set(NAMES)
    assert {"arm", "guard", "seal"} <= set(FUNCTIONS)


def test_the_table_of_variants_is_what_comes_out():
    """Every variant is on the page, in order, with the verdict that the tests assert."""
    assert [row[:2] for row in table("What came out")] == [[one.name, verdict(one)] for one in VARIANTS]


def test_the_invariants_are_explained():
    """Every invariant is on the page, in the words in which stories end."""
    assert dict(row[:2] for row in table("What is watched")) == MEANING


def test_the_story_on_the_page_is_the_one_that_is_told():
    """The page's example is a part of the report, word for word."""
    shown = PAGE.split("$ cd tests/proof && python -m model\n", 1)[1].split("```", 1)[0].strip()
    variant = next(one for one in VARIANTS if one.name == "check at the door, apply later")
    assert "\n".join(report(variant, variant.explore())) == shown
