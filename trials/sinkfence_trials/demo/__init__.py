"""The worked example, `sinkfence demo`: a worker is stopped past its lease, and its effects arrive late.

Read `worker` first, then `fenced` and `unfenced` side by side; `story` is the plot.
"""
