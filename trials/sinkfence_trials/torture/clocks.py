"""Wall clocks that are wrong: libfaketime's library, and what has a process obey it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sinkfence_trials.torture.run import NotRun


def environment(file: Path, word: str = "+0") -> dict[str, str]:
    """Return variables for a wall clock by a file: it says by how much it is off, from now on.

    The monotonic and boot-time clocks stay real.

    Raises:
        NotRun: libfaketime is not here, or where it can't be loaded from.
    """
    spec = importlib.util.find_spec("libfaketime")
    library = Path(spec.origin or "").parent / "vendor/libfaketime/src/libfaketime.so.1" if spec else None
    if library is None or not library.exists():
        raise NotRun("no libfaketime: pip install libfaketime, which builds it with a C compiler")
    if set(" :") & set(str(library)):  # ld.so(8), LD_PRELOAD
        raise NotRun(f"libfaketime can't be loaded from a path with a space or a colon in it: {library}")
    jump(file, word)
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
    }


def jump(file: Path, word: str) -> None:
    """Set a clock off from one moment to the next: a half-written file would be another offset."""
    new = file.with_suffix(".new")
    new.write_text(word + "\n")
    new.replace(file)
