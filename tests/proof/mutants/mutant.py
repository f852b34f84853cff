"""A mutant: a small exact change of the shipped source, made in a private copy of it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SHIPPED = ("sinkfence", "sinkfence_postgres", "sinkfence_s3", "sinkfence_http", "sinkfence_trials")
ROOTS = ("src", "adapters", "trials")
USERS = ("mutants.scenes", "real_sinks", "real_stores")
"""What of the tests uses the library, and must find the copy."""


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


class Copy:
    """A private copy of the shipped source, to be changed by one mutant after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._times = itertools.count(1)
        for root in ROOTS:
            shutil.copytree(ROOT / root, folder / root, ignore=shutil.ignore_patterns("demo", "__pycache__"))

    @contextmanager
    def changed(self, edits: tuple[Edit, ...]) -> Generator[None]:
        """Inside, whoever imports the library gets the copy with these edits; afterwards all is as it was.

        Imported anew are the packages that are edited, what builds on them, and the scenes.

        Raises:
            ValueError: an old text is not there, or more than once.
        """
        before = {self.folder / edit.file: (self.folder / edit.file).read_text() for edit in edits}
        packages = {edit.file.split("/")[1] for edit in edits}
        try:
            for edit in edits:
                self._edit(edit)
            with imported_anew(SHIPPED if "sinkfence" in packages else packages, self.folder):
                yield
        finally:
            for path, text in before.items():
                self._write(path, text)

    def _edit(self, edit: Edit) -> None:
        path = self.folder / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{edit.file} has this {text.count(edit.old)} times, not once:\n{edit.old}")
        self._write(path, text.replace(edit.old, edit.new))

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # What is compiled is told from what is stale by the source's size and time alone (importlib).
        os.utime(path, times=(0, next(self._times)))


@contextmanager
def imported_anew(packages: Collection[str], folder: Path) -> Generator[None]:
    """Inside, these packages and what uses them are imported from a folder; then they are as before."""
    mine = re.compile("|".join(rf"{re.escape(name)}(\.|$)" for name in (*packages, *USERS)))

    def loaded() -> list[str]:
        return [name for name in sys.modules if mine.match(name)]

    before = {name: sys.modules.pop(name) for name in loaded()}
    settings = sys.path.copy(), sys.pycache_prefix, sys.dont_write_bytecode
    sys.path[:0] = [str(folder / root) for root in ROOTS]
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder / "compiled"), False
    try:
        yield
    finally:
        sys.path[:], sys.pycache_prefix, sys.dont_write_bytecode = settings
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
