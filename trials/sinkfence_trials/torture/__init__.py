"""`sinkfence torture`: the fences under faults, on real servers, judged by a checker of its own.

`history` is what a run writes down and `checker` judges it, sharing no code with the sinks; `proxy` is the
network that goes wrong; `run` and `places` are what every part of it is given.
"""
