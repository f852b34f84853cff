"""The stores, children and cut wires of tests/core, for longer stories in real processes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from core.conftest import (  # noqa: E402, F401 - fixtures are found by their names here
    admin,
    child,
    far,
    lease_database,
    leases_of,
    ledger,
    lite,
    lite_file,
    lite_url,
    losses,
    open_store,
    pg,
    pg_url,
    store,
    url,
    wire,
)
