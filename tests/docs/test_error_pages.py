"""Each error has a page, to which its traceback leads, and the page shows what the error really says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

import sinkfence.errors
from sinkfence import Leases
from sinkfence.errors import REFERENCE, SinkfenceError
from sinkfence.stores.sql import SqlStore
from sinkfence_postgres import PostgresSink
from sinkfence_s3 import FencedBucket

ROOT = Path(__file__).parents[2]
PAGES = "docs/reference/errors"
CLASSES = {
    name: value
    for name, value in vars(sinkfence.errors).items()
    if inspect.isclass(value) and issubclass(value, SinkfenceError) and value is not SinkfenceError
}


@pytest.fixture
def leases(engine: Engine) -> Iterator[Leases]:
    """A manager of leases in the page's database."""
    with Leases(SqlStore(engine), owner="worker-a") as leases:
        yield leases


def test_every_error_has_a_page_and_no_page_is_of_nothing() -> None:
    """The pages are those of the classes, at the addresses that the classes name."""
    assert {page.stem for page in (ROOT / PAGES).glob("*.md")} == CLASSES.keys()
    for name, kind in CLASSES.items():
        assert kind.help_url == f"{REFERENCE}errors/{name}.html"
    assert (ROOT / "docs/reference/errors.md").exists()  # SinkfenceError's own


@pytest.mark.parametrize("name", CLASSES)
def test_a_page_says_what_the_error_says(
    name: str,
    run_page: Callable[..., dict[str, Any]],
    engine: Engine,
    leases: Leases,
    s3_client: Any,
    bucket_name: str,
    prefix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example raises the page's own error, whose text is shown (… stands for what varies)."""
    page = f"{PAGES}/{name}.md"
    text = (ROOT / page).read_text()
    assert [line for line in text.splitlines() if line.startswith("# ")] == [f"# {name}"]
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == ["What happened", "What to do next", "Example"]
    assert "\nRelated: " in text
    run_page(
        page,
        engine=engine,
        leases=leases,
        ledger=PostgresSink(engine),
        bucket=FencedBucket(s3_client, bucket_name, prefix=prefix),
    )
    shown = text.partition("```text\n")[2].partition("```")[0]
    assert re.fullmatch(re.escape(shown).replace("…", ".+"), capsys.readouterr().out)
    assert f"import {name}" in text or f", {name}" in text or "refusal(error)" in text
