"""The summary of a run counts what each destination refused: arms and writes, and reads."""

from __future__ import annotations

from sinkfence_trials.history import Event
from sinkfence_trials.torture.sometimes import Sometimes


def test_a_destination_that_never_refused_is_told_of() -> None:
    """Its line has a 0: left out, it would look as if nobody had asked."""
    seen = Sometimes()
    seen.see(
        [
            Event(1.0, "worker-a", "arm", "invoke", "job", 1, value={"sink": "http"}),
            Event(2.0, "worker-a", "write", "fail", "job", 1, value={"sink": "s3", "error": "StaleToken"}),
        ]
    )
    assert [line for line in seen.lines() if line.startswith("sometimes")] == [
        "sometimes: refusals 1, refusals by http 0, refusals by s3 1"
    ]


def test_reads_that_were_refused_are_counted_apart() -> None:
    """A late worker that is told so when it reads is one of them; a read that failed is not."""
    seen = Sometimes()
    assert "refused reads" not in "".join(seen.lines())
    seen.see([Event(1.0, "worker-a", "read", "invoke", "job", 1, value={"sink": "http"})])
    assert list(seen.lines())[-1] == "sometimes: refused reads 0"
    for error in ("StaleToken", "OperationalError"):
        value = {"sink": "http", "error": error}
        seen.see([Event(2.0, "worker-a", "read", "fail", "job", 1, value=value)])
    assert list(seen.lines())[-1] == "sometimes: refused reads 1"
