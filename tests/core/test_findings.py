"""What a doctor's report says, of a database and of a bucket alike."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

import sinkfence_postgres
import sinkfence_s3
from sinkfence.errors import NotEnforced
from sinkfence.findings import Finding, Grade, Report


def test_a_report_is_a_value() -> None:
    """Equal by content, picklable, printable."""
    one = Report("here", (Finding("locks", "unknown", "not tried", "try"),))
    assert one == pickle.loads(pickle.dumps(one))
    assert str(one) == "here\n  unknown locks: not tried\n            -> try\nNOT FENCED, or not shown to be"


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\x1b[2K", "\x85", "\u2028", "\u2029", "\x0b", "\u202e", "\u2066", "\ud800"]
)
def test_a_name_ends_no_line_and_forges_none(end: str) -> None:
    """Whoever may name a table or a bucket can't write a line of the report, nor turn one round."""
    name = f"table x{end}fenced"
    report = Report(name, (Finding(name, "broken", name, name),))
    assert str(report).splitlines() == [
        f"table x{ascii(end)[1:-1]}fenced",
        f"  broken  table x{ascii(end)[1:-1]}fenced: table x{ascii(end)[1:-1]}fenced",
        f"            -> table x{ascii(end)[1:-1]}fenced",
        "NOT FENCED, or not shown to be",
    ]
    assert report.findings[0].name == name


def test_names_in_any_script_are_as_they_are() -> None:
    """What is printable isn't escaped."""
    name = "Prüfung 検査 تدقيق 🔒"
    assert f"ok      {name}: {name}\n" in str(Report("here", (Finding(name, "ok", name),)))


@pytest.mark.parametrize("grade", get_args(Grade))
def test_what_is_broken_or_unknown_is_not_fenced(grade: Grade) -> None:
    """What is weak or a note takes nothing from the fence; `check` raises with the report otherwise."""
    report = Report("here", (Finding("schema", "ok", "fine"), Finding("locks", grade, "so and so")))
    assert report.fenced == (grade not in ("broken", "unknown"))
    assert report.holds("locks") == (grade == "ok")
    if report.fenced:
        report.check()
        assert str(report).endswith("\nfenced")
    else:
        with pytest.raises(NotEnforced, match="locks: so and so"):
            report.check()


def test_where_nothing_was_looked_at_nothing_is_claimed() -> None:
    """No finding is no fence; and of several under one name all must be ok."""
    assert not Report("here", ()).fenced
    assert not Report("here", ()).holds("locks")
    two = (Finding("roles", "ok", "fine"), Finding("roles", "note", "one is a superuser"))
    assert not Report("here", two).holds("roles")


def test_both_doctors_speak_of_the_same_findings() -> None:
    """The adapters export one Finding and one Report."""
    assert sinkfence_s3.Finding is sinkfence_postgres.Finding is Finding
    assert sinkfence_s3.Report is sinkfence_postgres.Report is Report
