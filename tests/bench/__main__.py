"""Runs benchmarks by name, or all, and ends with one table of them; or writes the page of what was run."""

from __future__ import annotations

import sys

if __package__ == "":  # run as a folder, whose modules are named after what they measure, `http` among it
    sys.path[0] += "/.."

import argparse
import importlib
import secrets
from pathlib import Path

from bench import page
from bench.drawing import draw
from bench.race import Race, Result, play
from bench.report import Item, machine, overview, table, write_json

HERE = Path(__file__).parent
NAMES = sorted(
    (path.parent if path.name == "__init__.py" else path).stem
    for path in (*HERE.glob("*.py"), *HERE.glob("*/__init__.py"))
    if "\ndef bench(" in path.read_text("utf-8")
)


def main(arguments: list[str]) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="run.py bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--rounds", type=int, help="rounds of each race; default: as each race has it")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of the order of turns")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where NAME.json and NAME.svg go")
    parser.add_argument("--small", action="store_true", help="sizes that only show that it runs")
    parser.add_argument(
        "--page",
        action="store_true",
        help="run nothing: write docs/explanation/numbers.md of what is in --out",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    if options.page:
        page.write(options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    results = {
        name: run(name, rounds=options.rounds, seed=options.seed, small=options.small, out=options.out)
        for name in options.names or NAMES
    }
    print(f"\nAll of it:\n{overview(results)}", end="")


def run(name: str, *, rounds: int | None, seed: int, small: bool, out: Path) -> list[Item]:
    """Run one benchmark: what it yields is shown as it comes."""
    about = machine() | {"seed": seed}
    first = ", ".join(f"{key} {value}" for key, value in about.items())
    items: list[Item] = [f"`{name}`: {first}"]
    print(table(items), end="", flush=True)
    for made in importlib.import_module(f"bench.{name}").bench(small):
        item = play(made, rounds=rounds, seed=seed) if isinstance(made, Race) else made
        items.append(item)
        print(table([item]), end="", flush=True)
    write_json(items, about, out / f"{name}.json")
    (out / f"{name}.md").write_text(table(items))
    if races := [item for item in items if isinstance(item, Result)]:
        (out / f"{name}.svg").write_text(draw(races, f"{name}, seed {seed}"))
    return items


if __name__ == "__main__":
    main(sys.argv[1:])
