"""Writes docs/explanation/numbers.md, and what is behind it, of results: nothing there is written by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from bench.drawing import draw
from bench.goals import AIMS, judge
from bench.race import Result
from bench.report import Item, overview, read_json, shown, write_json

EXPLANATION = Path(__file__).resolve().parents[2] / "docs" / "explanation"
KEPT = EXPLANATION / "numbers"
"""The results that the page is made of, and the pictures."""
NAMES = {
    "postgres": "PostgreSQL",
    "leases": "Leases",
    "s3": "S3",
    "http": "HTTP",
}

PACKAGES = {
    "postgres": {"SQLAlchemy", "psycopg", "asyncpg", "django", "fencekit"},
    "leases": {"SQLAlchemy", "psycopg", "asyncpg", "stormlock", "sentinel-coordination", "mithril-locks"},
    "s3": {"boto3", "obstore"},
    "http": {
        *("uvicorn", "fastapi", "flask", "psycopg"),
        *("idemkit", "fastapi-idempotency-key", "asgi-idempotency-header"),
    },
}
"""Which of the installed packages take part in each benchmark."""
"""The benchmarks that are on the page, in its order, and what each is called there."""

TOP = """\
# All numbers

<!-- Written by `python3 run.py bench --page` of numbers/*.json. Run it again, and edit nothing here. -->

This page compares sinkfence with the same work without it, and with other packages. In short:
"""
GIST = """\
- **PostgreSQL.** 8 clients with 10 ms of work in each transaction keep {postgres[transaction()]} of their
  rate on one job. A one-row transaction takes {single[guarded]} times as long, and {single[row column]}
  times with the check in the row instead.
- **S3.** A write up to 1 MiB stays one request. It takes {kilobyte[fenced put]} times as long at 1 kB, and
  {parts[fenced put]} times at 64 MB.
- **HTTP.** The door adds {door.value:.0f} µs of CPU to a call: {fastapi[fenced]} times FastAPI's CPU time,
  and {flask[fenced]} times Flask's.
- **Leases.** Taking, renewing and ending a lease comes to {leases[sinkfence]} of the rate of three plain
  UPDATEs, and one statement renews 10,000 leases in {batch.value:.0f} ms.
- **Your machine.** Client and server shared two cores here, so what is computed weighs more than where each
  has its own: measure before you decide by a number.
"""
"""What a reader should take from the numbers, with the ratios of these results."""
METHOD = """\
## How it is measured

`python3 run.py bench` measures all of it on your machine in about a quarter of an hour, and
`python3 run.py bench postgres` a part.

Contestants take turns within each round, in a new random order. Each is compared with the baseline *of the
same round*, so a slow moment of the machine meets all of them. A ratio is the median over the rounds, with
its quartiles. The **A/A control** is the baseline once more, under another name. As far as it is from 1, two
equal things seem apart here, and no smaller difference says anything.
"""
ELSEWHERE = (
    (
        "no row whose generation is below the highest mark committed before it, in 50,000 commits",
        "[54,087 commits, none](numbers-postgres.md#commit-order)",
    ),
    (
        "the same test finds thousands that a plain read and FOR KEY SHARE let through",
        "[2,443 of 33,484](numbers-postgres.md#commit-order)",
    ),
)
"""Goals that tests hold, at the sizes of the design."""
TREE = """\
```{toctree}
:hidden:

numbers-postgres
numbers-leases
numbers-s3
numbers-http
```
"""


def write(results: Path, page: Path = EXPLANATION / "numbers.md", kept: Path = KEPT) -> None:
    """Keep the results of each benchmark that was run, and write the page of all that are kept.

    Raises:
        LookupError: a goal was not measured: all benchmarks are to be run as they are now.
    """
    for name, title in NAMES.items():
        if (results / f"{name}.json").exists():
            about, items = read_json(results / f"{name}.json")
            write_json(items, about, kept / f"{name}.json")
            _, items = read_json(kept / f"{name}.json")  # in fewer digits
            races = [item for item in items if isinstance(item, Result)]
            (kept / f"{name}.svg").write_text(draw(races, f"{title}: the ratios of the table"))
    page.write_text(text(kept))


def text(kept: Path) -> str:
    """Return the page that is made of these results."""
    found = {name: read_json(kept / f"{name}.json") for name in NAMES}
    items = {name: items for name, (_, items) in found.items()}
    named = {NAMES[name]: of_name for name, of_name in items.items()}
    parts = [
        TOP,
        _gist(items),
        METHOD,
        "## What it was measured on\n",
        "\n".join(_conditions(name, *found[name]) for name in NAMES) + "\n",
        "## The goals\n",
        _goals(items),
        "## The table\n",
        "Each destination's page describes the contestants, what they leave out, and where the time goes.",
        overview(named),
        "## The pictures\n",
        "Each line is a row of the table: the median on its quartiles; the red mark is the goal.\n",
        *(
            f"![The ratios of {title}, as in the table](numbers/{name}.svg)\n"
            for name, title in NAMES.items()
        ),
        TREE,
    ]
    return "\n".join(parts)


def _gist(items: dict[str, list[Item]]) -> str:
    """The head of the page."""

    def of(bench: str, title: str) -> Any:
        [found] = (item for item in items[bench] if not isinstance(item, str) and item.title == title)
        if isinstance(found, Result):
            return {standing.name: shown(standing.ratio) for standing in found.standings}
        return found

    return GIST.format(
        postgres=of("postgres", "8 clients, 10 ms of work inside, 1 job"),
        single=of("postgres", "one-row transaction in one message, synchronous_commit on"),
        kilobyte=of("s3", "an owner's write, 1 kB"),
        parts=of("s3", "an owner's write, 64 MB in parts of 8 MB"),
        door=of("http", "what the door adds to a call, a cached token"),
        fastapi=of("http", "FastAPI under uvicorn"),
        flask=of("http", "Flask, called"),
        leases=of("leases", "acquire, renew and complete, 8 clients"),
        batch=of("leases", "the median batch"),
    )


def _conditions(name: str, about: dict[str, Any], items: list[Item]) -> str:
    """When and where, and the notes that a benchmark begins with."""
    where = ", ".join(
        f"{key} {value}" for key, value in about.items() if key not in ("when", "packages", "seed")
    )
    notes = list(itertools.takewhile(lambda item: isinstance(item, str), items))[1:]
    lines = [f"- [{NAMES[name]}](numbers-{name}.md), {about['when'][:16].replace('T', ' ')} UTC: {where}."]
    lines += [f"  {note}." for note in notes]
    with_it = [
        one for one in about.get("packages", "").split(", ") if one and one.split()[0] in PACKAGES[name]
    ]
    if with_it:
        lines.append(f"  {', '.join(with_it)}.")
    return "\n".join(lines)


def _goals(items: dict[str, list[Item]]) -> str:
    """Every goal of the design: reached or not, and why not."""
    lines: list[str] = []
    reached = 0
    for name, title in NAMES.items():
        lines += ["", f"### {title}", "", "| goal | measured | |", "| --- | --- | --- |"]
        for aim in (aim for aim in AIMS if aim.bench == name):
            verdict = judge(aim, items[name])
            reached += verdict.met
            told = "reached" if verdict.met else f"**missed**: {aim.why or 'see the page'}"
            lines.append(f"| {aim.says} | {verdict.measured} | {told} |")
    lines += ["", "### Not timed", "", "| goal | found | |", "| --- | --- | --- |"]
    lines += [f"| {says} | {found} | reached |" for says, found in ELSEWHERE]
    return (
        "\n".join(
            [
                f"The design set {len(AIMS) + len(ELSEWHERE)}, and {reached + len(ELSEWHERE)} are reached.",
                *lines,
            ]
        )
        + "\n"
    )
