"""What is shown of a benchmark: a table, the numbers behind it, and a plot."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Any

from bench.race import CONTROL, Figure, Result

Item = Result | Figure | str


def table(items: list[Item]) -> str:
    """Return a benchmark as Markdown: a line for each contestant and figure, notes before and between."""
    return "\n".join(line for item in items for line in _lines(item)) + "\n"


def _lines(item: Item) -> list[str]:
    if isinstance(item, str):
        return ["", item]
    if isinstance(item, Figure):
        verdict = "" if item.goal is None else f" (goal {item.goal}: {_verdict(item.goal.met(item.value))})"
        return [f"- {item.title}: {item.value:.4g} {item.unit}{verdict}"]
    race = item.race
    lines = [
        "",
        f"**{race.title}** ({len(item.standings[0].values)} rounds, {race.better} is good)",
        "",
        f"| contestant | {race.unit} | ratio to {race.baseline} | quartiles | goal | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for standing in item.standings:
        low, high = standing.quartiles
        goal, verdict = ("", "")
        if standing.goal is not None:
            goal, verdict = str(standing.goal), _verdict(standing.goal.met(standing.ratio))
        lines.append(
            f"| {standing.name} | {standing.value:.4g} | {standing.ratio:.3f} "
            f"| {low:.3f} to {high:.3f} | {goal} | {verdict} |"
        )
    return lines


def _verdict(met: bool) -> str:
    return "reached" if met else "**missed**"


def machine() -> dict[str, Any]:
    """Return what a number means nothing without."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def write_json(items: list[Item], about: dict[str, Any], path: Path) -> None:
    """Write all values of all rounds."""
    path.write_text(json.dumps({"about": about, "items": [_plain(item) for item in items]}, indent=1) + "\n")


def _plain(item: Item) -> Any:
    if isinstance(item, str):
        return item
    if isinstance(item, Figure):
        goal = None if item.goal is None else str(item.goal)
        return {"title": item.title, "value": item.value, "unit": item.unit, "goal": goal}
    race = item.race
    return {
        "title": race.title,
        "unit": race.unit,
        "better": race.better,
        "baseline": race.baseline,
        "values": {standing.name: standing.values for standing in item.standings},
        "ratios": {standing.name: standing.ratio for standing in item.standings},
        "goals": {name: str(goal) for name, goal in race.goals.items()},
    }


def plot(items: list[Item], path: Path) -> None:
    """Draw each race: the ratio of every round, the median with its quartiles, the goals.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Drawing

    races = [item for item in items if isinstance(item, Result)]
    heights = [len(race.standings) for race in races]
    drawing = Drawing(figsize=(8, sum(heights) * 0.32 + 0.9 * len(races)), layout="constrained")
    axes = drawing.subplots(len(races), squeeze=False, height_ratios=heights)[:, 0]
    for ax, result in zip(axes, races, strict=True):
        names = [standing.name for standing in result.standings]
        for row, standing in enumerate(result.standings):
            colour = "0.6" if standing.name in (CONTROL, result.race.baseline) else "C0"
            ax.plot(standing.ratios, [row] * len(standing.ratios), ".", color=colour, alpha=0.35)
            ax.plot(standing.quartiles, [row, row], "-", color=colour, linewidth=3)
            ax.plot([standing.ratio], [row], "o", color=colour)
            if standing.goal is not None:
                ax.plot([standing.goal.bound] * 2, [row - 0.4, row + 0.4], "-", color="C3")
        ax.axvline(1, color="0.85", zorder=0)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_title(
            f"{result.race.title}: ratio of {result.race.unit}, {result.race.better} is good", fontsize=9
        )
        ax.tick_params(labelsize=8)
    FigureCanvasSVG(drawing).print_svg(path, metadata={"Date": None})
