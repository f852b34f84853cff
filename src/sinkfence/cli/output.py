"""What a command prints: a table in a terminal, lines of tab-separated text in a pipe, JSON on demand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import rich.console
import rich.table
import rich.text

from sinkfence.cli.streams import printable
from sinkfence.findings import Report
from sinkfence.findings import printable as one_line

Shown = Mapping[str, str]
"""One line of a table: its columns' names, and what stands there."""

_STYLES: Final = {"ok": "green", "note": "cyan", "weak": "yellow", "broken": "bold red"}


def put(text: str) -> None:
    """Print plain text."""
    print(printable(text))


def put_json(value: object) -> None:
    """Print JSON."""
    print(json.dumps(value, indent=2))


def put_list(name: str, items: Sequence[Mapping[str, Any]], table: Sequence[Shown], *, as_json: bool) -> None:
    """Print many records of one kind: as JSON all that is known of them, else what fits into a line."""
    console = rich.console.Console(highlight=False)
    if as_json:
        put_json({name: items})
    elif not table:
        if console.is_terminal:
            put(f"no {name}")
    elif console.is_terminal:
        drawn = rich.table.Table(*table[0], box=None, header_style="bold", pad_edge=False)
        for line in table:
            drawn.add_row(*(rich.text.Text(one_line(value), overflow="fold") for value in line.values()))
        console.print(drawn)
    else:
        for cells in (list(table[0]), *(line.values() for line in table)):
            put("\t".join(map(one_line, cells)))


def put_one(item: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one record, whole."""
    if as_json:
        put_json(item)
        return
    width = max(map(len, item)) + 2
    for name, value in item.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        put(f"{name + ':':{width}}{one_line(text)}")


def put_report(report: Report, *, as_json: bool) -> None:
    """Print what a doctor has found."""
    if as_json:
        findings = [asdict(each) for each in report.findings]
        put_json({"where": report.where, "fenced": report.fenced, "findings": findings})
        return
    console = rich.console.Console(highlight=False)
    if not console.is_terminal:
        put(str(report))
        return
    for line in printable(str(report)).splitlines():
        grade = line.split(maxsplit=1)[0] if line.startswith("  ") and line.strip() else ""
        console.print(rich.text.Text(line, style=_STYLES.get(grade, "")), soft_wrap=True)
