"""A service that forks while it is inside its host's gate: what the child may do to its parent's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sinkfence import Token
from sinkfence_http import HostGate, aio
from sinkfence_http.answers import Refused

ROOT = Path(__file__).parents[2]

FORKS_IN_A_SIGNAL_HANDLER = """
import fcntl, os, signal, sys
from sinkfence import Token
from sinkfence_http import HostGate

def fork(*_):
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)

signal.signal(signal.SIGUSR1, fork)
gate, token, flock = HostGate(sys.argv[1]), Token("invoice-42", 7, "o7"), fcntl.flock
gate.announce(token)

def signalled(fd, how):
    if sys.argv[2] == "before":
        signal.raise_signal(signal.SIGUSR1)
    flock(fd, how)
    if sys.argv[2] == "after":
        signal.raise_signal(signal.SIGUSR1)
    fcntl.flock = flock

fcntl.flock = signalled
with gate.enter(token):
    print("inside", flush=True)
    sys.stdin.read()
"""


def token(generation: int = 7, job_id: str = "invoice-42") -> Token:
    return Token(job_id, generation, f"o{generation}")


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], None]], Callable[[], None]]]:
    """Fork a child that calls something and then waits; return, once it has, what ends it."""
    ends: list[Callable[[], None]] = []

    def fork(call: Callable[[], None]) -> Callable[[], None]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                call()
                os.write(write, b"done")
                signal.pause()
            os._exit(1)
        os.close(write)

        def end() -> None:
            if pid in alive:
                alive.remove(pid)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

        alive.append(pid)
        ends.append(end)
        said = os.read(read, 4)
        os.close(read)
        assert said == b"done"
        return end

    alive: list[int] = []
    yield fork
    for each in ends:
        each()


def test_a_child_that_goes_out_where_its_parent_went_in_gives_up_nothing_of_its_own(tmp_path, child):
    """Its files have the numbers of those that it has let go of: it leaves by what they are."""
    gate, quick = HostGate(tmp_path), HostGate(tmp_path, drain_timeout=0)
    other = "invoice-43"
    gate.announce(token())
    gate.announce(token(job_id=other))
    outer, inner = gate.enter(token()), gate.enter(token(job_id=other))

    def unwind() -> None:
        inner.__enter__()
        outer.__exit__(None, None, None)

    with outer:
        end = child(unwind)
        with pytest.raises(Refused):
            quick.announce(token(8, other))  # the child is inside
        with pytest.raises(Refused):
            quick.announce(token(8))  # and so is its parent
    end()
    quick.announce(token(8, other))
    quick.announce(token(8))


def test_a_child_that_goes_out_of_its_parent_s_attempt_does_not_end_it(tmp_path, child):
    """The request is in progress as long as the parent is at it, whatever its child says of the outcome."""
    replay = HostGate(tmp_path).replay()

    for say in (lambda claim: claim.leave(undone=True), lambda claim: claim.keep("the child's")):
        with replay.claim(token(), "key", "content") as claim:
            assert claim.state == "run"

            def unwind(claim=claim, say=say) -> None:
                say(claim)
                claim.close()

            child(unwind)
            with replay.claim(token(), "key", "content") as again:
                assert again.state == "in-progress"
            claim.leave(undone=True)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_handler_that_forks_in_the_middle_of_a_lock(tmp_path, moment):
    """It doesn't hang, and its child keeps nobody out once the parent was killed."""
    service = subprocess.Popen(
        [sys.executable, "-c", FORKS_IN_A_SIGNAL_HANDLER, str(tmp_path), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'adapters'}"},
    )
    watchdog = signal.SIGALRM
    signal.signal(watchdog, lambda *_: service.kill())
    signal.alarm(60)
    said: list[str] = []
    try:
        said = [service.stdout.readline().strip()]
        assert said[0].isdigit(), "it hangs"
        said.append(service.stdout.readline().strip())
        while said[-1].isdigit():
            said.append(service.stdout.readline().strip())
        assert said[-1] == "inside"
        quick = HostGate(tmp_path, drain_timeout=0)
        with pytest.raises(Refused):
            quick.announce(token(8))
        service.kill()
        service.wait()
        quick.announce(token(8))
    finally:
        signal.alarm(0)
        signal.signal(watchdog, signal.SIG_DFL)
        service.kill()
        service.wait()
        service.stdin.close()
        service.stdout.close()
        for each in said:
            if each.isdigit():
                os.kill(int(each), signal.SIGKILL)


def test_a_child_whose_parent_s_pid_has_come_back_begins_threads_of_its_own(tmp_path, child):
    """Its parent's threads aren't there, and what it gave them to do would never be done."""
    gate, pid = aio.HostGate(tmp_path), os.getpid()

    def announce() -> None:
        signal.alarm(20)
        os.getpid = lambda: pid
        asyncio.run(gate.announce(token(8)))

    asyncio.run(gate.announce(token()))
    child(announce)()


def test_a_child_whose_parent_s_pid_has_come_back_keeps_no_answer_in_its_place(tmp_path, child):
    """The parent's attempt is the parent's, and still under way."""
    replay, pid = HostGate(tmp_path).replay(), os.getpid()

    def keep() -> None:
        os.getpid = lambda: pid
        claim.keep('[200, [], ""]')

    with replay.claim(token(), "key", "fingerprint") as claim:
        child(keep)()
        with replay.claim(token(), "key", "fingerprint") as again:
            assert again.state == "in-progress"
