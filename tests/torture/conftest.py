"""What the workers of all these tests are forked from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from sinkfence_trials.torture.nursery import Nursery


@pytest.fixture(scope="package")
def nursery() -> Iterator[Nursery]:
    """One nursery for all: to import what a worker needs takes longer than most of what it does."""
    with closing(Nursery()) as opened:
        yield opened
