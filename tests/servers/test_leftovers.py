"""Whatever ends the owner of a server, nothing of the server stays."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.mark.parametrize(
    ("words", "before"),
    [
        (("s3",), {"process", "folder", ".sock", "shared memory"}),
        (("fork",), {"process", "folder", "shared memory"}),
        (("crash",), {"folder", "shared memory"}),
    ],
    ids=["both servers", "a fork lives on", "the server had crashed"],
)
def test_sigkill_of_the_owner_leaves_nothing(own_servers, words, before) -> None:
    """No process, folder, socket or shared memory stays when the owner is killed."""
    owner = own_servers(*words)
    assert owner.left() == before
    owner.process.kill()
    owner.process.wait()
    owner.wait_for_supervisors()
    assert owner.left() == set()


def test_stopped_backends_do_not_stay(own_servers) -> None:
    """Processes of the server that are stopped, and deaf to all but SIGKILL, go with the others."""
    owner = own_servers()
    for pid in owner.told["backends"]:
        os.kill(pid, signal.SIGSTOP)
    owner.process.kill()
    owner.wait_for_supervisors()
    assert owner.left() == set()


def test_an_orderly_end_leaves_nothing_and_no_fork_holds_it_up(own_servers) -> None:
    """The end of the `with` block ends the servers, although a fork of the owner holds the pipes open."""
    owner = own_servers("fork")
    owner.process.stdin.write("go on\n")
    owner.process.stdin.flush()
    assert owner.process.wait(30) == 0
    assert owner.left() == set()
