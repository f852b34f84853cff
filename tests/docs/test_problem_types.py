"""Each problem type's address leads to its section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinkfence_http import answers

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http-wire.md").read_text("utf-8")
ANSWERS = [value for value in vars(answers).values() if isinstance(value, answers.Answer) and value.title]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.slug)
def test_a_problem_has_a_section(answer):
    """It says the status and whether to repeat, and the table of words agrees with the code."""
    assert answers.PROBLEMS.endswith("/reference/http-wire.html#")
    section = PAGE.split(f"\n### {answer.slug}\n\n")[1].split("\n### ")[0]
    assert section.startswith(f"{answer.status}")
    row = re.search(rf"^\| \[`{answer.slug}`\]\(#{answer.slug}\) \| (\d+) \| (yes)? ?\|", PAGE, re.MULTILINE)
    assert row is not None
    assert int(row[1]) == answer.status
    assert (row[2] == "yes") == (answer.retry_after is not None)


def test_there_is_no_section_of_nothing():
    """What the page explains is what the door can say."""
    sections = PAGE.split("\n## Problems\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^### (.*)$", sections, re.MULTILINE)) == {answer.slug for answer in ANSWERS}
