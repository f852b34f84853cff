"""What the tests import, the test extra brings: on a fresh machine nothing is there by accident."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = {"sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http", "sinkfence_trials"}
DRIVERS = {"psycopg", "psycopg2", "asyncpg"}  # SQLAlchemy imports these, as a URL names them
CONTESTANTS = {  # of benchmarks; they needn't be installed
    "exactly_once": ["exactly-once"],
    "fastapi_idempotency_key": ["fastapi-idempotency-key"],
    "fencekit": ["fencekit"],
    "idemkit": ["idemkit"],
    "idempotency_header_middleware": ["asgi-idempotency-header"],
    "mithril": ["mithril-locks"],
    "obstore": ["obstore"],
    "pgqueuer": ["pgqueuer"],
    "procrastinate": ["procrastinate"],
    "redis": ["fencekit"],
    "sentinel": ["sentinel-coordination"],
    "stormlock": ["stormlock"],
}
TYPES_ALONE = {"mypy_boto3_s3"}  # imported under TYPE_CHECKING


def asked_for(extra: str) -> set[str]:
    """The distributions that an extra asks for, by itself and by the extras that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names: set[str] = set()
    for wanted in map(Requirement, project["optional-dependencies"][extra]):
        if wanted.name == "sinkfence":
            names = names.union(*map(asked_for, wanted.extras))
        else:
            names.add(canonicalize_name(wanted.name))
    return names


def brought(names: set[str]) -> set[str]:
    """These distributions, and those that they require in turn."""
    found: set[str] = set()
    while names := names - found:
        found |= names
        required = {text for name in names for text in required_by(name)}
        wanted = {Requirement(text) for text in required}
        names = {
            canonicalize_name(each.name)
            for each in wanted
            if each.marker is None or each.marker.evaluate({"extra": "crypto"})
        }
    return found


def required_by(name: str) -> list[str]:
    """What an installed distribution requires."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.requires(name) or []
    return []


def imported(path: Path) -> set[str]:
    """The top-level names of what a file imports, inside functions too, and the drivers that it names."""
    text = path.read_text()
    names = DRIVERS & set(re.findall(r"\w+", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(("extra", "folder"), [("test", "tests"), ("bench", "tests/bench")])
def test_whatever_is_imported_here_is_in_the_extra(extra: str, folder: str) -> None:
    """Each module from elsewhere is of a distribution that the extra asks for, or brings along.

    A benchmark runs as a test without its contestants, and says then which are not run.
    """
    files = set((ROOT / folder).rglob("*.py"))
    if extra == "test":
        files -= set((ROOT / "tests" / "bench").rglob("*.py"))
    modules = {name for path in files for name in imported(path)}
    beside = {path.stem for path in (ROOT / "tests").rglob("*") if path.suffix == ".py" or path.is_dir()}
    elsewhere = modules - sys.stdlib_module_names - OURS - TYPES_ALONE - beside
    owners = importlib.metadata.packages_distributions() | CONTESTANTS
    there = brought(asked_for(extra))
    assert extra == "bench" or elsewhere >= DRIVERS | {"pytest"}
    assert {
        name for name in elsewhere if there.isdisjoint(map(canonicalize_name, owners.get(name, [])))
    } == set()
