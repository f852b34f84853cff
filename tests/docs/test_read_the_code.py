"""What has to be read to believe the fences is as short as the page says, and is all of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "read-the-code.md"
ROW = re.compile(r"^\| \[[\w.]+\]\(\.\./\.\./((?:src|adapters)/[\w./]+)\)", re.MULTILINE)
LIMIT = 5_500

PARTS = re.split("^## (?:Beside them|Other ways in)$", PAGE.read_text(), flags=re.MULTILINE)
core, beside, _ = ({ROOT / row for row in ROW.findall(part)} for part in PARTS)


def file_of(module: str) -> Path | None:
    """The file of a module of the library's, if it is one."""
    for root in (ROOT / "src", ROOT / "adapters"):
        place = root / module.replace(".", "/")
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def imported(file: Path) -> Iterator[Path]:
    """The library's files that a file imports from, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), level=0):
                names = [file_of(f"{module}.{name.name}") or file_of(module) for name in node.names]
            case ast.Import():
                names = [file_of(name.name) for name in node.names]
            case _:
                continue
        yield from filter(None, names)


def test_what_decides_is_read_in_an_afternoon() -> None:
    """The files that could let a stale write through stay below the limit that the page tells."""
    assert f"below {LIMIT:,} lines" in PAGE.read_text()
    assert sum(len(file.read_text().splitlines()) for file in core) < LIMIT


def test_what_decides_uses_nothing_that_the_page_keeps_silent_of() -> None:
    """Each import of the listed files is listed, too, and nothing stands beside them that they don't use."""
    used = {other for file in core if file.suffix == ".py" for other in imported(file)}
    assert used - core - beside == set()
    assert beside - used == set()
