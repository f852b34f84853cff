"""Leases of real processes that are stopped, killed and forked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sinkfence import LeaseLost, Leases, StaleToken
from sinkfence.grants import Store
from sinkfence.marks import MemoryMarks
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore

JOB = "invoice-42"

HOLDER = """
import sys, threading
from sinkfence import Leases, LeaseLost
from sinkfence.stores.sql import SqlStore
told = []
event = threading.Event()
def on_lost(lease, error):
    told.append(error)
    event.set()
leases = Leases(SqlStore(sys.argv[1]), ttl=float(sys.argv[2]), owner="worker", on_lost=on_lost)
try:
    with leases.hold(sys.argv[3]) as lease:
        print("holds", lease.generation, flush=True)
        sys.stdin.readline()
        event.wait(30)
        try:
            lease.token
        except LeaseLost:
            print("lost, told", len(told), flush=True)
        sys.stdin.readline()
except LeaseLost:
    print("left", len(told), flush=True)
again = leases.acquire(sys.argv[3], wait=30)
print("holds", again.generation, flush=True)
leases.close()
print("closed", threading.active_count(), flush=True)
"""


def test_a_stopped_process_has_lost_its_lease_and_can_acquire_again(
    url: str, open_store: Any, child: Any
) -> None:
    """C60: stopped for longer than its ttl, it is told once when it goes on, and acquires again later."""
    a = child(HOLDER, url, "1.0", JOB)
    assert a.hear() == "holds 1"
    a.signal(signal.SIGSTOP)
    b = Leases(open_store(url)).acquire(JOB, wait=30)
    assert b.generation == 2
    a.signal(signal.SIGCONT)
    a.say("")
    assert a.hear() == "lost, told 1"
    a.say("")
    assert a.hear() == "left 1"
    b.release()
    assert a.hear() == "holds 3"
    assert a.hear() == "closed 1"


def test_a_killed_workers_lease_ends_although_its_namesake_lives(
    url: str, open_store: Any, child: Any, leases_of: Callable[..., Leases]
) -> None:
    """C64: the heartbeat of a restarted worker of the same name renews its own leases and no others."""
    a = child(HOLDER, url, "1.0", JOB)
    assert a.hear() == "holds 1"
    a.process.kill()
    namesake = leases_of(open_store(url), ttl=20, heartbeat=0.05, owner="worker")
    with namesake.hold("other work") as own:
        assert leases_of(open_store(url)).acquire(JOB, wait=30).generation == 2
        assert own.token.generation == 1


FORKS = """
import os, sys, threading
from sinkfence import Leases, LeaseLost
from sinkfence.stores.sql import SqlStore
leases = Leases(SqlStore(sys.argv[1]), ttl=20)
def child(lease):
    for use in (lambda: lease.token, lease.renew, lease.complete, lease.release):
        try:
            use()
        except LeaseLost as lost:
            print("forked" in str(lost), end=" ", flush=True)
    print(lease.remaining(), lease.lost.is_set(), flush=True)
    with leases.hold("child's own") as own:
        print("child holds", own.generation, flush=True)
with leases.hold(sys.argv[2]) as lease:
    # What another thread holds at the fork stays held in the child: it must not be waited for.
    locks = [lease._tenure._lock, leases._holders.open()._lock, leases._holders.open()._heartbeat._changed]
    for lock in locks:
        lock.acquire()
    pid = os.fork()
    if pid:
        for lock in locks:
            lock.release()
        os.waitpid(pid, 0)
    else:
        child(lease)
        del locks
if pid:
    print("parent", leases.get(sys.argv[2]).owner, leases.get("child's own").generation, flush=True)
else:
    print("child leaves", leases.get(sys.argv[2]).owner == lease._tenure.token.owner, flush=True)
    os._exit(0)
"""


def test_a_forked_child_has_no_lease_and_starts_afresh(url: str, child: Any) -> None:
    """The child's image is void and releases nothing; its manager works, whatever was locked at the fork."""
    process = child(FORKS, url, JOB)
    assert process.hear() == "True True True True 0.0 True"
    assert process.hear() == "child holds 1"
    assert process.hear() == "child leaves True"
    assert process.hear() == "parent None 1"


NAMESAKE = """
import os, sys
from sinkfence import Leases, LeaseLost
from sinkfence.stores.memory import MemoryStore
from sinkfence.stores.sql import SqlStore
leases, memory, pid = Leases(SqlStore(sys.argv[1]), ttl=20), MemoryStore(), os.getpid()
lease = leases.acquire(sys.argv[2])
memory.acquire("job", "a:1", 20.0)
for _ in range(2):  # a child, and a child of that, which the system gives the pid of its parent's parent
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1])
os.getpid = lambda: pid
for use in (lambda: lease.token, lambda: memory.get("job")):
    try:
        print(use(), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
holders = leases._holders
print(leases.acquire("other").generation, holders.open() is holders._by_process[pid, 0], flush=True)
os._exit(0)
"""


def test_a_pid_that_comes_back_brings_no_lease_back(url: str, child: Any) -> None:
    """A grandchild that is given its grandparent's pid has none of its leases and connections."""
    process = child(NAMESAKE, url, JOB)
    assert [process.hear() for _ in range(3)] == ["LeaseLost", "NotEnforced", "1 False"]
    assert process.process.wait(30) == 0


def test_an_exit_in_the_middle_leaves_the_lease_to_run_out(url: str, open_store: Any, child: Any) -> None:
    """The heartbeat doesn't keep a process alive whose main thread ended, and the lease runs out."""
    script = (
        "import sys\nfrom sinkfence import Leases\nfrom sinkfence.stores.sql import SqlStore\n"
        "held = Leases(SqlStore(sys.argv[1]), ttl=1.0).hold('job')\nheld.__enter__()\n"
        "import os, atexit; atexit.register(lambda: print('exits', flush=True))\n"
    )
    process = child(script, url)
    assert process.hear() == "exits"
    assert process.process.wait(30) == 0
    assert Leases(open_store(url)).acquire("job", wait=30).generation == 2


INTERRUPTED = """
import faulthandler, signal, sys
from sinkfence import LeaseLost, Leases, OutcomeUnknown
from sinkfence.stores.memory import MemoryStore
faulthandler.dump_traceback_later(120, exit=True)
lines = here = at = 0
def handler(number, frame):
    try:
        if sys.argv[1] == "close":
            leases.close(timeout=0.05)
        elif lease is not None:
            lease.release()
    except (ExceptionGroup, OutcomeUnknown, LeaseLost):
        pass
def trace(frame, event, arg):
    global here
    if "leases" not in frame.f_code.co_filename:
        return None
    if event == "line":
        here += 1
        if here == at:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
    return trace
signal.signal(signal.SIGTERM, handler)
while at <= lines:
    here, lease, told = 0, None, []
    leases = Leases(MemoryStore(), on_lost=lambda *loss: told.append(loss))
    sys.settrace(trace)
    try:
        with leases.hold("job") as lease:
            lease.renew()
            lease.token
    except (LeaseLost, RuntimeError):
        pass  # given back, or closed
    sys.settrace(None)
    lines, at = lines or here, at + 1
    for holder in leases._holders._by_process.values():
        assert not holder._heartbeat._beating, at
    assert told == [], at
    leases.close()
print("interrupted", flush=True)
"""


@pytest.mark.parametrize("what", ["close", "release"])
def test_a_signals_handler_may_close_or_release_wherever_it_comes(child: Any, what: str) -> None:
    """Nothing waits for what the handler has interrupted, at any line, and nothing beats on after it."""
    assert child(INTERRUPTED, what).hear() == "interrupted"


def test_only_the_newest_owners_rows_are_written(store: Store) -> None:
    """C05: without heartbeats, three owners in turn write; older ones are refused from the takeover on."""
    leases = Leases(store)
    sink = MemoryMarks()
    rows: list[int] = []
    refused: list[int] = []
    owners = []
    for _ in range(3):
        lease = leases.acquire(JOB)
        owners.append(lease.token)  # a worker that keeps its token and never looks at its lease again
        sink.arm(owners[-1])
        for token in owners:
            for _ in range(10):
                try:
                    sink.arm(token)
                    rows.append(token.generation)
                except StaleToken:
                    refused.append(token.generation)
        store.reopen(JOB)  # as if it had run out
    assert rows == sorted(rows)
    assert {generation: rows.count(generation) for generation in rows} == {1: 10, 2: 10, 3: 10}
    assert len(refused) == 30


def use_up(lease: Any, barrier: threading.Barrier, errors: list[Exception]) -> None:
    """Renew, show and release a lease along with others."""
    barrier.wait()
    try:
        lease.renew()
        _ = lease.token
        lease.release()
    except LeaseLost as error:
        errors.append(error)


def test_threads_may_share_a_lease(leases_of: Callable[..., Leases]) -> None:
    """Sharing one between threads is safe: of many that end it at once one does, and all see it ended."""
    leases = leases_of(MemoryStore())
    for _ in range(20):
        lease = leases.acquire(JOB, wait=5)
        barrier, errors = threading.Barrier(4), []
        workers = [threading.Thread(target=use_up, args=(lease, barrier, errors)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert all("released" in str(error) for error in errors)
        with pytest.raises(LeaseLost):
            _ = lease.token


def test_a_manager_at_module_level_opens_nothing(tmp_path: Any) -> None:
    """Making a store and a manager connects to nothing and starts no thread."""
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    Leases(SqlStore(f"sqlite:///{tmp_path}/leases.db"))
    Leases(SqlStore("postgresql://nobody@203.0.113.1/nowhere"))
    assert not (tmp_path / "leases.db").exists()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
