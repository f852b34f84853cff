"""Wall clocks that are wrong: libfaketime's library, and the file that says by how much."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sinkfence.torture.run import NotRun


def faketime() -> Path:
    """Return the library that sets a process's wall clock off.

    Raises:
        NotRun: it is not there.
    """
    spec = importlib.util.find_spec("libfaketime")
    library = Path(spec.origin or "").parent / "vendor/libfaketime/src/libfaketime.so.1" if spec else None
    if library is None or not library.exists():
        raise NotRun("pip install libfaketime")
    return library


def clock_of(file: Path, library: Path) -> tuple[Path, dict[str, str]]:
    """Return the file that says by how much a worker's wall clock is off, and what has the worker read it."""
    file.write_text("+0\n")
    return file, {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }
