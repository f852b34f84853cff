"""How the story is shown: a line for everything that happens, coloured in a terminal and plain in a pipe."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.text import Text

from sinkfence.terms import boot_time
from sinkfence_trials.demo.verdict import Verdict

STYLES: Final = {"worker A": "yellow", "worker B": "cyan"}
"""Who is who; everybody else is dim."""


class Narrator:
    """Prints the story to a Rich console, which knows about pipes, NO_COLOR and widths."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = boot_time()

    def title(self, text: str) -> None:
        """Head what follows."""
        self._line(Text(f"\n{text}", style="bold"))

    @contextmanager
    def progress(self, what: str) -> Generator[None]:
        """Show that something is being waited for: a spinner in a terminal, a line in a pipe."""
        if self._console.is_terminal:
            with self._console.status(f"starting {what} ...", spinner="line"):
                yield
        else:
            self._line(Text(f"starting {what} ..."))
            yield

    def start(self) -> None:
        """Count the seconds from here."""
        self._start = boot_time()

    def tell(self, who: str, what: str, style: str = "") -> None:
        """Add a line: who did what, and when. What is on further lines stands below."""
        seconds = (f"{boot_time() - self._start:5.2f} s  ", "dim")
        what = what.replace("\n", "\n" + " " * 22)
        self._line(Text.assemble(seconds, (f"{who:<13}", STYLES.get(who, "dim")), (what, style)))

    def fact(self, name: str, value: str) -> None:
        """Add a line of the final state."""
        self._line(Text.assemble((f"  {name:<9}", "dim"), value))

    def judge(self, verdict: Verdict, conclusion: str, style: str) -> None:
        """List every expectation, and say what follows if all of them held."""
        self.title("What had to be so:")
        for check in verdict.checks:
            mark = ("  ok    ", "green") if check.held else ("  FAIL  ", "bold red")
            found = f" (found: {check.found})" if check.found else ""
            self._line(Text.assemble(mark, check.what, (found, "red")))
        if verdict.good:
            self._line(Text(f"\n{conclusion}", style=style))
        else:
            self._line(Text("\nNot all of it was so: see FAIL.", style="bold red"))

    def _line(self, text: Text) -> None:
        # Wrapped by the terminal, not by Rich: a line in a pipe stays one line, whatever its length.
        self._console.print(text, soft_wrap=True)
