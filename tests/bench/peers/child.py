"""A process of a scene: python -m bench.peers.child MODULE ROLE DSN REDIS."""

from __future__ import annotations

import importlib
import sys

from bench.peers.stage import Stage

name, role, dsn, redis = sys.argv[1:]
peer = importlib.import_module(f"bench.peers.{name}")
stage = Stage(dsn, redis or None, role)
if role == "prepare":
    peer.prepare(stage)
elif role == "record":
    print(peer.record(stage))
else:
    with stage.trying("at the end"):
        peer.work(stage)
    stage.end()
