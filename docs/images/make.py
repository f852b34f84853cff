"""Make the two pictures of the README from real runs of the demo: `python docs/images/make.py`.

It needs what `sinkfence demo` needs. Look at both before you commit them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from sinkfence_trials.checker import check
from sinkfence_trials.demo.show import show
from sinkfence_trials.demo.telling import Telling
from sinkfence_trials.timeline.picture import picture
from sinkfence_trials.timeline.plan import NARROW
from sinkfence_trials.timeline.reading import read
from sinkfence_trials.timeline.run import Run
from sinkfence_trials.timeline.style import COLOURS_CSS, PICTURE_CSS

TOP = 62
"""Room for the words above the picture."""

WORDS = {
    "unfenced": ("Without checks", "bad", "Worker A wakes up late, and writes over B's work."),
    "fenced": ("With sinkfence", "c c2", "Worker A wakes up late, and each write is refused."),
}


def drawing(run: Run, name: str) -> str:
    """Return the SVG of a run, which stands alone: it has its colours and its background with it."""
    drawn = picture(run, NARROW, top=TOP, said="accepted")
    title, colour, sentence = WORDS[name]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {drawn.width:g} '
        f'{drawn.height:g}" width="{drawn.width:g}" height="{drawn.height:g}" role="img" '
        f'aria-label="{title}: {sentence}"><style>{COLOURS_CSS}{PICTURE_CSS}</style>'
        f'<rect width="{drawn.width:g}" height="{drawn.height:g}" style="fill:var(--paper)"/>'
        f'<text class="{colour}" x="12" y="22" style="font-size:18px;font-weight:700">{title}</text>'
        f'<text x="12" y="44">{sentence}</text>{drawn.body}</svg>\n'
    )


def played(*, fenced: bool) -> Run:
    """Play the story, and return what there is to draw."""
    telling = Telling()
    code = show(Console(), fenced=fenced, telling=telling)
    if code:
        sys.exit(code)
    events = telling.history()
    return read(events, check(events))


def main() -> None:
    """Play both stories, and draw them by one axis, on which worker A is stopped at the same place."""
    runs = {name: played(fenced=name == "fenced") for name in WORDS}
    before = max(run.faults[0].begin - run.begin for run in runs.values())
    after = max(run.end - run.faults[0].begin for run in runs.values())
    for name, run in runs.items():
        stopped = run.faults[0].begin
        run.begin, run.end = stopped - before, stopped + after
        (Path(__file__).parent / f"{name}.svg").write_text(drawing(run, name), encoding="utf-8")
    print(f"\nFrom when A is stopped it is {after:.1f} s: about 3 s where little else runs.")


if __name__ == "__main__":
    main()
