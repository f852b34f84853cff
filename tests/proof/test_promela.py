"""The core of the model says the same in Promela, for more writes and handlers than the explorer tries."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("sinkfence.pml")
COMPILER = shutil.which("cc") or shutil.which("gcc")
D1, D9 = "one>=highest", "one>=armed"

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or COMPILER is None,
    reason="not run: needs spin and a C compiler on PATH (Debian: apt-get install spin gcc)",
)


def verify(folder: Path, **macros: int) -> tuple[str | None, int]:
    """Explore one variant to the end; return the assertion that broke, if any, and the number of states."""
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    subprocess.run(["spin", "-a", *defines, str(SOURCE)], cwd=folder, check=True, capture_output=True)
    subprocess.run([str(COMPILER), "-O0", "-DSAFETY", "-w", "-o", "pan", "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m10000"], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert "max search depth too small" not in said, "a bound was hit: nothing is proved"
    broken = re.search(r"assertion violated \((.*?)\)", said)
    states = re.search(r"(\d+) states, stored", said)
    assert states is not None, said
    assert bool(broken) == ("errors: 0" not in said), said
    return broken.group(1) if broken else None, int(states.group(1))


@pytest.mark.parametrize(
    ("name", "variant", "arm", "verdict"),
    [
        ("no check", 0, 0, D1),
        ("no check, armed", 0, 1, D9),
        ("check atomic with the effect", 1, 0, None),
        ("check atomic with the effect, armed", 1, 1, None),
        ("check at the door, apply later", 2, 0, D1),
        ("check at the door, apply later, armed", 2, 1, D9),
        ("check in the applying transaction", 3, 0, None),
        ("check in the applying transaction, armed", 3, 1, None),
        ("inside COMMIT: lock, then mark", 4, 1, None),
        ("inside COMMIT: mark, then lock", 5, 1, D9),
    ],
)
def test_verdict(tmp_path, say, name, variant, arm, verdict):
    """Three owners, two writes each, two handlers: what holds is explored whole, what does not breaks."""
    broken, states = verify(tmp_path, VARIANT=variant, ARM=arm, WORKERS=3, WRITES=2, HANDLERS=2)
    say(f"Promela, {name}: {broken or 'holds'} (3 workers, 2 writes each, 2 handlers: {states} states)")
    assert broken == verdict
    if verdict is None:
        assert states > 50_000
