"""Benchmarks: contestants that take turns in one run, so that what else the machine does meets them all.

To write one, add `tests/bench/NAME.py` with one generator, which keeps its servers open in `with` blocks:

    def bench(small: bool) -> Iterator[Race | Figure | str]:
        with postgres(durable=True) as server:
            yield "PostgreSQL 18, fsync on"         # a line about what was measured, or was not run
            yield Race(
                "one-row transaction", unit="ms",   # turns return costs in this unit; or rates: better="high"
                contestants={"bare": bare, "guarded": guarded},
                baseline="bare",                    # against which ratios are taken, round by round
                goals={"guarded": at_most(1.35)},   # of the ratio
            )
            yield Figure("WAL per transaction", 0, "bytes", at_most(0))   # what is counted, not timed

`small` is for the smoke test: sizes for which all of it takes a second or two. A turn is a callable without
arguments that does a fixed amount of work (0.1 to 1 s is good) and returns a float: `timed(work)` and
`burned(work)` (CPU seconds) make one. Libraries of the extra `bench` are looked for with `absent("obstore")`,
and a contestant without its library is left out, with a line that says "not run: ...".
`python3 run.py bench NAME` runs it.
"""
