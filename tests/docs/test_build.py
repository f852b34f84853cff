"""The documentation builds, and every command on its pages is one that exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None,
    reason="needs the docs extra; `python3 run.py docs` builds the pages as well",
)
def test_builds_without_warnings(tmp_path: Path) -> None:
    """Sphinx takes every page without a warning: no dead reference, no page outside the tree."""
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "-n",
            "-q",
            "--keep-going",
            "-d",
            tmp_path / "d",
            "docs",
            tmp_path,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "index.html").exists()
