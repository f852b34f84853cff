"""The reference names what exists, as it exists."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import sinkfence.errors
from sinkfence.errors import SinkfenceError

DOCS = Path(__file__).parents[2] / "docs"
SECTION = re.compile(r"^## (\S+)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SIGNATURE = re.compile(r"^- `(?:await )?([A-Za-z_.]+)\((.*)\)`:$", re.MULTILINE)


def entries() -> list[tuple[str, str, str]]:
    """Module, name and parameters of each entry of the API page."""
    text = (DOCS / "reference" / "api.md").read_text()
    return [(module, *entry) for module, body in SECTION.findall(text) for entry in SIGNATURE.findall(body)]


def parameters(called: Any) -> str:
    """The names and defaults of a callable's parameters, as the page writes them."""
    signature = inspect.signature(called)
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in ("self", "clock") and not name.startswith("_")
    ]
    return str(inspect.Signature(shown))[1:-1]


@pytest.mark.parametrize(("module", "name", "shown"), entries(), ids=lambda value: str(value)[:30])
def test_entries_exist(module: str, name: str, shown: str) -> None:
    """Each entry of the API page can be imported from its module, and takes these parameters."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert shown == parameters(found)


def test_the_page_is_of_the_public_packages() -> None:
    """What is on it is of the four packages whose types are checked; the trials are private."""
    public = {"sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http"}
    assert {module.partition(".")[0] for module, _, _ in entries()} == public


def test_errors_page_is_complete() -> None:
    """Every error class has its line in the table of what to do next."""
    page = (DOCS / "reference" / "errors.md").read_text()
    classes = [
        name
        for name, value in vars(sinkfence.errors).items()
        if inspect.isclass(value) and issubclass(value, SinkfenceError) and value is not SinkfenceError
    ]
    assert [name for name in classes if f"| [{name}](errors/{name}.md) |" not in page] == []
