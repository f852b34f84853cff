"""Where a wrong wall clock can't be had."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from sinkfence_trials.torture.clocks import environment
from sinkfence_trials.torture.run import NotRun


@pytest.mark.parametrize("folder", ["my clone", "a:b"])
def test_a_path_that_the_loader_would_split_is_not_run(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_PRELOAD splits at spaces and colons: the clock would stay right, and the run inconclusive."""
    library = tmp_path / folder / "vendor/libfaketime/src/libfaketime.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    spec = ModuleSpec("libfaketime", None, origin=str(tmp_path / folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(NotRun, match="a space or a colon"):
        environment(tmp_path / "clock")
