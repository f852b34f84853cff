"""The import contracts name every module, so that a new one cannot slip through."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_is_under_a_contract() -> None:
    """Each module of the core is the source of one; the face, command line, demo and torture are above."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    named = {module for contract in settings["contracts"] for module in contract.get("source_modules", [])}
    modules = {
        path.stem for path in (ROOT / "src/sinkfence").iterdir() if path.suffix == ".py" or path.is_dir()
    }
    above = {"__init__", "__pycache__", "cli", "demo", "torture"}
    assert {f"sinkfence.{module}" for module in modules - above} <= named
