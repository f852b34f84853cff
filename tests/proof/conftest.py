"""The proof's own modules are imported by their bare names; what was explored is said at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

SAID = pytest.StashKey[list[str]]()


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Add a line to the summary: bounds and numbers, without which a verdict means little."""
    return pytestconfig.stash.setdefault(SAID, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(SAID, []):
        terminalreporter.section("what was explored")
        for line in lines:
            terminalreporter.write_line(line)
