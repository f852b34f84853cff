"""What is shown of benchmarks: a table, and the numbers behind it, which can be read again."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.race import Figure, Goal, Result, compared

Item = Result | Figure | str
HEAD = ["", "| | measured | ratio (quartiles) | goal |", "| --- | ---: | ---: | --- |"]
PACKAGES = (
    *("SQLAlchemy", "psycopg", "asyncpg", "boto3", "obstore", "uvicorn", "fastapi", "flask", "django"),
    *("fencekit", "stormlock", "sentinel-coordination", "mithril-locks"),
    *("idemkit", "fastapi-idempotency-key", "asgi-idempotency-header"),
)
"""Whose versions a number depends on."""


def table(items: list[Item]) -> str:
    """Return items as Markdown: a table of races and figures, notes before and between."""
    lines: list[str] = []
    for before, item in zip([None, *items], items, strict=False):
        if isinstance(item, str):
            lines += ["", item]
        else:
            lines += [*(HEAD if before is None or isinstance(before, str) else []), *_rows(item)]
    return "\n".join(lines) + "\n"


def overview(results: Mapping[str, list[Item]]) -> str:
    """Return one table of all races and figures of all benchmarks."""
    lines = list(HEAD)
    for name, items in results.items():
        for item in items:
            if not isinstance(item, str):
                first, *others = _rows(item)
                lines += [f"| {name}: {first.removeprefix('| ')}", *others]
    return "\n".join(lines) + "\n"


def _rows(item: Result | Figure) -> list[str]:
    if isinstance(item, Figure):
        return [f"| {item.title} | {item.value:.4g} {item.unit} | | {_aim(item.goal, item.value)} |"]
    rounds = len(item.standings[0].values)
    rows = [
        f"| **{item.title}** ({rounds} rounds, {item.better} is good) | {item.unit} | to {item.baseline} | |"
    ]
    for standing in item.standings:
        low, high = map(shown, standing.quartiles)
        spread = f"{shown(standing.ratio)} ({low} to {high})"
        aim = _aim(standing.goal, standing.ratio)
        rows.append(f"| {standing.name} | {standing.value:.4g} | {spread} | {aim} |")
    return rows


def _aim(goal: Goal | None, value: float) -> str:
    return "" if goal is None else f"{goal}: {verdict(goal, value)}"


def verdict(goal: Goal, value: float) -> str:
    """Whether a goal is reached."""
    return "reached" if goal.met(value) else "**missed**"


def shown(ratio: float) -> str:
    """A ratio, as exactly as it can be compared with a goal."""
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}"


def machine() -> dict[str, Any]:
    """Return what a number means nothing without."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": _system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "packages": ", ".join(f"{name} {number}" for name, number in found.items()),
    }


def _system() -> str:
    """Which, without the build's own name: `Linux 6.18, x86_64`."""
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.system()} {release}, {platform.machine()}"


def _processor() -> str:
    """What Linux calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write_json(items: list[Item], about: dict[str, Any], path: Path) -> None:
    """Write all values of all rounds."""
    path.write_text(json.dumps({"about": about, "items": [_plain(item) for item in items]}, indent=1) + "\n")


def read_json(path: Path) -> tuple[dict[str, Any], list[Item]]:
    """Return what was written: about what, and the items."""
    read = json.loads(path.read_text())
    return read["about"], [_item(plain) for plain in read["items"]]


def _plain(item: Item) -> Any:
    if isinstance(item, str):
        return item
    if isinstance(item, Figure):
        goal = None if item.goal is None else str(item.goal)
        return {"title": item.title, "value": _short(item.value), "unit": item.unit, "goal": goal}
    return {
        "title": item.title,
        "unit": item.unit,
        "better": item.better,
        "baseline": item.baseline,
        "values": {each.name: [_short(value) for value in each.values] for each in item.standings},
        "goals": {each.name: str(each.goal) for each in item.standings if each.goal is not None},
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _item(plain: Any) -> Item:
    if isinstance(plain, str):
        return plain
    if "values" not in plain:
        goal = plain["goal"] and Goal.read(plain["goal"])
        return Figure(plain["title"], plain["value"], plain["unit"], goal)
    goals = {name: Goal.read(goal) for name, goal in plain["goals"].items()}
    what = [plain[key] for key in ("title", "unit", "better", "baseline")]
    return compared(*what, plain["values"], goals)
