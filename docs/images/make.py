"""Make the two pictures of the README from real runs of the demo: `python docs/images/make.py`.

It needs what `sinkfence demo` needs. Look at both before you commit them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from sinkfence_trials.checker import check
from sinkfence_trials.demo.record import Record
from sinkfence_trials.demo.show import show
from sinkfence_trials.history import Event
from sinkfence_trials.timeline.picture import picture
from sinkfence_trials.timeline.plan import NARROW
from sinkfence_trials.timeline.scenes import scenes
from sinkfence_trials.timeline.style import COLOURS, PICTURE

TOP = 62
"""Room for the words above the picture."""

WORDS = {
    "unfenced": ("Without checks", "bad", "Worker A wakes up late, and writes over B's work."),
    "fenced": ("With sinkfence", "c c2", "Worker A wakes up late, and each write is refused."),
}


def drawing(events: list[Event], name: str) -> str:
    """Return the SVG of a run, which stands alone: it has its colours and its background with it."""
    drawn = picture(scenes(events, check(events)), NARROW, top=TOP, said="accepted")
    title, colour, sentence = WORDS[name]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {drawn.width:g} '
        f'{drawn.height:g}" width="{drawn.width:g}" height="{drawn.height:g}" role="img" '
        f'aria-label="{title}: {sentence}"><style>{COLOURS}{PICTURE}</style>'
        f'<rect width="{drawn.width:g}" height="{drawn.height:g}" style="fill:var(--paper)"/>'
        f'<text class="{colour}" x="12" y="22" style="font-size:18px;font-weight:700">{title}</text>'
        f'<text x="12" y="44">{sentence}</text>{drawn.body}</svg>\n'
    )


def main() -> None:
    """Play both stories, and draw them."""
    for name in WORDS:
        record = Record()
        code = show(Console(), fenced=name == "fenced", record=record)
        if code:
            sys.exit(code)
        events = [Event(**line) for line in record.lines()]
        (Path(__file__).parent / f"{name}.svg").write_text(drawing(events, name), encoding="utf-8")


if __name__ == "__main__":
    main()
