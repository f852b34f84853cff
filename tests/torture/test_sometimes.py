"""The summary of a run counts what each destination refused."""

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
