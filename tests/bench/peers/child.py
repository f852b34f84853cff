"""A process of a scene: python -m bench.peers.child MODULE ROLE DSN REDIS."""

from __future__ import annotations

import importlib
import logging
import sys

from bench.peers.stage import Stage


class Listener(logging.Handler):
    """Keeps in whose log there was a warning, or worse."""

    def emit(self, entry: logging.LogRecord) -> None:
        said = f"log of {entry.name.partition('.')[0]}"
        if said not in stage.heard:
            stage.heard.append(said)


name, role, dsn, redis = sys.argv[1:]
peer = importlib.import_module(f"bench.peers.{name}")
stage = Stage(dsn, redis or None, role)
logging.getLogger().addHandler(Listener(logging.WARNING))
if role == "prepare":
    peer.prepare(stage)
elif role == "record":
    print(peer.record(stage))
else:
    with stage.trying("at the end"):
        peer.work(stage)
    stage.end()
