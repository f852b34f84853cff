"""requirements.lock: what pyproject.toml asks for, at versions and hashes that were tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def test_everything_asked_for_is_locked() -> None:
    """Each requirement of each extra has a locked version that meets it; else `run.py` would take any."""
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE):
        locked.setdefault(name, []).append(version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in (
        Requirement(text) for extra in project["optional-dependencies"].values() for text in extra
    ):
        if wanted.name != "sinkfence":
            versions = locked[canonicalize_name(wanted.name)]
            assert all(version in wanted.specifier for version in versions), wanted


def test_every_version_has_hashes_and_no_index_is_named() -> None:
    """The lock can be checked by `pip install --require-hashes`, against whichever mirror of the registry."""
    requirements = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert requirements
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert "://" not in LOCK
