"""A process behind a HostGate, which obeys lines: python gate_worker.py FOLDER GENERATION PATIENCE."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from sinkfence import StaleToken, Token
from sinkfence_http import HostGate
from sinkfence_http.answers import Refused

folder, generation, patience = sys.argv[1:]
gate = HostGate(folder, drain_timeout=float(patience))
token = Token("invoice-42", int(generation), f"owner-{generation}")


def say(word: str) -> None:
    print(word, flush=True)


for line in sys.stdin:
    try:
        match line.strip():
            case "announce":
                gate.announce(token)
                say("announced")
            case "enter":
                with gate.enter(token):
                    say("inside")
                    while (order := sys.stdin.readline().strip()) != "leave":
                        if order == "start":  # a program that outlives the handler
                            say(str(subprocess.Popen(["sleep", "60"], close_fds=False).pid))
                        elif order == "fork":  # as a pool of processes does
                            child = os.fork()
                            if child == 0:
                                signal.pause()
                            say(str(child))
                say("left")
    except StaleToken as stale:
        say(f"stale {stale.mark}")
    except Refused as refused:
        say(refused.answer.slug)
