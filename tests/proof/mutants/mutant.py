"""A mutant: a small exact change of the shipped source, made in a private copy of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SHIPPED = ("sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http")


@dataclass(frozen=True)
class Edit:
    """One place that is changed. The old text stands there exactly once, or the code has moved on."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One broken variant."""

    name: str
    scene: str
    """What it is put through: `module.function` of `mutants.scenes`."""
    invariant: str
    """Which one must catch it."""
    harm: str
    """What would happen to a user."""
    edits: tuple[Edit, ...]
    promise: str = ""
    """Which promise of the contract kit it breaks, where it can be seen from outside."""

    def __str__(self) -> str:
        return self.name


@contextmanager
def changed(folder: Path, edits: tuple[Edit, ...]) -> Generator[None]:
    """Inside, whoever imports the library gets a copy with these edits; afterwards it is as it was.

    Copied are the packages that are edited. Imported anew are these, what builds on them, and the scenes.

    Raises:
        ValueError: an old text is not there, or more than once.
    """
    roots = {tuple(edit.file.split("/")[:2]) for edit in edits}
    for root, package in roots:
        source = ROOT / root / package
        shutil.copytree(source, folder / root / package, ignore=shutil.ignore_patterns("demo"))
    for edit in edits:
        path = folder / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{edit.file} has this {text.count(edit.old)} times, not once:\n{edit.old}")
        path.write_text(text.replace(edit.old, edit.new))
        # What is compiled is told from what is stale by size and second alone (importlib).
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
    packages = {package for _, package in roots}
    anew = (
        *(SHIPPED if "sinkfence" in packages else packages),
        "mutants.scenes",
        "real_sinks",
        "real_stores",
    )

    def loaded() -> list[str]:
        return [name for name in sys.modules if any(f"{name}.".startswith(f"{one}.") for one in anew)]

    before = {name: sys.modules.pop(name) for name in loaded()}
    path = sys.path.copy()
    sys.path[:0] = [str(folder / root) for root, _ in roots]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
