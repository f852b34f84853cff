"""A host's files as the gate: among processes, threads and tasks, and over kills."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sinkfence import GenerationConflict, NotArmed, NotEnforced, StaleToken, Token
from sinkfence_http import HostGate, aio, mounts
from sinkfence_http.answers import Refused
from sinkfence_http.files import SLOT

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "services" / "gate_worker.py"
NAME = hashlib.sha256(b"invoice-42").hexdigest()


def token(generation: int = 7, owner: str | None = None, job_id: str = "invoice-42") -> Token:
    return Token(job_id, generation, owner or f"owner-{generation}")


class Worker:
    """A process behind the gate."""

    def __init__(self, folder: Path, generation: int, patience: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(generation), str(patience)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'adapters'}"},
        )

    def tell(self, order: str) -> None:
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, order: str) -> str:
        self.tell(order)
        return self.said()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(generation: int, patience: float = 60) -> Worker:
        started.append(Worker(tmp_path, generation, patience))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.process.stdin.close()
        each.process.stdout.close()


def until_marked(gate: HostGate, generation: int) -> None:
    """Return once a newer owner has raised the mark."""
    while True:
        with contextlib.suppress(NotArmed):
            try:
                gate.check(token(generation - 1))
            except StaleToken:
                return


def test_a_newer_owner_waits_until_the_old_one_has_left(worker, tmp_path):
    """7 is inside; 8 raises the mark at once, which keeps 7 out from then on, and enters when 7 has left."""
    seven, again, eight = worker(7), worker(7), worker(8)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    eight.tell("announce")
    until_marked(HostGate(tmp_path), 8)
    assert again.ask("announce") == "stale 8"
    assert again.ask("enter") == "stale 8"
    assert seven.ask("leave") == "left"
    assert eight.said() == "announced"
    assert eight.ask("enter") == "inside"


def test_a_newer_owner_that_has_waited_too_long_is_not_let_in(worker, tmp_path):
    """After drain_timeout the answer is previous-owner-in-flight, and again, until the old one has left."""
    seven, eight = worker(7), worker(8, 0.05)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    assert [eight.ask("announce"), eight.ask("announce")] == ["previous-owner-in-flight"] * 2
    assert seven.ask("leave") == "left"
    assert eight.ask("announce") == "announced"


def test_the_second_request_of_a_newer_owner_waits_like_the_first(worker, tmp_path):
    """The mark says 8 already, and 7 is inside still: nobody of 8 gets in."""
    seven, eight, other = worker(7), worker(8), worker(8, 0.05)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    eight.tell("announce")
    until_marked(HostGate(tmp_path), 8)
    assert other.ask("announce") == "previous-owner-in-flight"
    with pytest.raises(NotArmed):
        HostGate(tmp_path).check(token(8))
    assert seven.ask("leave") == "left"
    assert [eight.said(), other.ask("announce"), other.ask("enter")] == ["announced", "announced", "inside"]


def test_a_process_that_is_killed_inside_has_left(worker):
    """kill -9 lets go of the lock, and of nothing else: the mark stands."""
    seven, eight = worker(7), worker(8)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    eight.tell("announce")
    seven.process.kill()
    assert eight.said() == "announced"
    assert worker(7).ask("announce") == "stale 8"


def test_a_process_that_is_stopped_inside_is_waited_for(worker):
    """SIGSTOP keeps the lock: 8 is not let in, until 7 goes on and leaves."""
    seven, eight = worker(7), worker(8, 0.05)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    seven.process.send_signal(signal.SIGSTOP)
    try:
        assert eight.ask("announce") == "previous-owner-in-flight"
    finally:
        seven.process.send_signal(signal.SIGCONT)
    assert seven.ask("leave") == "left"
    assert eight.ask("announce") == "announced"


def test_a_program_that_a_handler_has_started_does_not_keep_the_lock(worker):
    """The lock's descriptor is closed on exec: a daemon that outlives the request holds nobody up."""
    seven, eight = worker(7), worker(8)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    program = int(seven.ask("start"))
    seven.process.kill()
    try:
        assert eight.ask("announce") == "announced"
    finally:
        os.kill(program, signal.SIGKILL)


def test_a_child_that_a_handler_has_forked_does_not_keep_the_lock(worker):
    """The worker of a pool of processes lives on after the service was killed: 8 gets in nevertheless."""
    seven, eight = worker(7), worker(8, 5)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    child = int(seven.ask("fork"))
    assert worker(8, 0).ask("announce") == "previous-owner-in-flight"  # the parent has its place still
    seven.process.kill()
    try:
        assert eight.ask("announce") == "announced"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_killed_raiser_leaves_nobody_waiting(worker, tmp_path):
    """8 is killed while it waits for 7: its mark stands, and another request of 8 goes on where it was."""
    seven, eight = worker(7), worker(8)
    assert [seven.ask("announce"), seven.ask("enter")] == ["announced", "inside"]
    eight.tell("announce")
    until_marked(HostGate(tmp_path), 8)
    eight.process.kill()
    other = worker(8)
    other.tell("announce")
    assert seven.ask("leave") == "left"
    assert other.said() == "announced"


def test_the_rule(tmp_path):
    """Equal passes for the same owner, lower is stale, the same number under another owner a conflict."""
    gate = HostGate(tmp_path)
    gate.announce(token(9))
    gate.announce(token(10))
    gate.announce(token(10))
    with pytest.raises(StaleToken) as stale:
        gate.announce(token(9))
    assert stale.value.mark == 10
    with pytest.raises(GenerationConflict):
        gate.announce(token(10, "another"))
    with pytest.raises(NotArmed), gate.enter(token(11)):
        pass
    gate.announce(token(1, job_id="../../etc/passwd\U0001f600"))
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}


def test_a_process_that_comes_later_finds_mark_and_owner(tmp_path):
    """Marks are files: another gate over the same folder knows them."""
    HostGate(tmp_path).announce(token(7))
    with pytest.raises(GenerationConflict):
        HostGate(tmp_path).announce(token(7, "another"))
    HostGate(tmp_path).check(token(7))


def test_the_mark_is_on_the_disk_before_anybody_is_waited_for(tmp_path, monkeypatch):
    """fsync comes before the lock that waits; and again where an earlier one may not have come about."""
    steps: list[str] = []
    fsync, flock = os.fsync, fcntl.flock
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd)))
    monkeypatch.setattr(
        fcntl,
        "flock",
        lambda fd, how: (steps.append(os.readlink(f"/proc/self/fd/{fd}")[-6:]), flock(fd, how)),
    )
    gate = HostGate(tmp_path, drain_timeout=0)
    HostGate(tmp_path).announce(token(7))
    assert steps.index("fsync") < steps.index("inside")
    with HostGate(tmp_path).enter(token(7)):
        steps.clear()
        for _ in range(2):
            with pytest.raises(Refused):
                gate.announce(token(8))
        assert steps.count("fsync") == 4


@pytest.mark.parametrize("cut", [0, 1, 30, SLOT - 1])
def test_a_mark_that_was_torn_when_the_power_went(tmp_path, cut):
    """Half of the newer mark on the disk: the one before holds; the newer one was promised to nobody."""
    gate = HostGate(tmp_path)
    path = tmp_path / f"{NAME}.mark"
    gate.announce(token(7))
    before = path.read_bytes().ljust(2 * SLOT, b"\0")
    gate.announce(token(8))
    after = path.read_bytes().ljust(2 * SLOT, b"\0")
    place = 0 if before[:SLOT] != after[:SLOT] else SLOT
    torn = after[place : place + cut] + before[place + cut : place + SLOT]
    path.write_bytes(before[:place] + torn + before[place + SLOT :])
    with pytest.raises(StaleToken):
        HostGate(tmp_path).announce(token(6))
    HostGate(tmp_path).announce(token(8))


def test_a_damaged_mark_keeps_the_door_shut(tmp_path):
    """A file that holds no mark at all, and isn't empty, is no job without a mark."""
    (tmp_path / f"{NAME}.mark").write_bytes(b"rubbish" * 100)
    with pytest.raises(NotEnforced, match="damaged"):
        HostGate(tmp_path).announce(token())


def test_threads_of_one_process_exclude_each_other(tmp_path):
    """A lock is per request, not per process."""
    gate, quick = HostGate(tmp_path), HostGate(tmp_path, drain_timeout=0)
    gate.announce(token(7))
    left = threading.Event()
    with gate.enter(token(7)), gate.enter(token(7)):
        with pytest.raises(Refused) as refused:
            quick.announce(token(8))
        assert refused.value.answer.status == 503
        assert refused.value.answer.retry_after
        waiting = threading.Thread(target=lambda: (gate.announce(token(8)), left.set()))
        waiting.start()
        until_marked(gate, 8)
        assert not left.is_set()
    waiting.join()
    assert left.is_set()


def test_a_forked_child_does_not_keep_its_parent_s_place(tmp_path):
    """The child has the parent's descriptors: the parent leaves by word, not by closing alone."""
    gate = HostGate(tmp_path, drain_timeout=0)
    gate.announce(token(7))
    read, write = os.pipe()
    with gate.enter(token(7)):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        gate.announce(token(8))
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_an_exception_leaves(tmp_path):
    """Whatever ends a request, its place is free."""
    gate = HostGate(tmp_path, drain_timeout=0)
    gate.announce(token(7))
    with contextlib.suppress(KeyboardInterrupt), gate.enter(token(7)):
        raise KeyboardInterrupt
    gate.announce(token(8))


def test_no_old_request_is_inside_once_a_new_owner_is(tmp_path):
    """Threads of rising generations come in any order: a newer one was never inside with an older one."""
    gate, inside, lock = HostGate(tmp_path), [], threading.Lock()
    wrong: list[tuple[int, list[int]]] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        start.wait()
        for generation in sorted(chosen.randrange(1, 40) for _ in range(15)):
            with contextlib.suppress(StaleToken):
                gate.announce(token(generation))
                with gate.enter(token(generation)):
                    with lock:
                        inside.append(generation)
                        if len(set(inside)) > 1:
                            wrong.append((generation, list(inside)))
                    with lock:
                        inside.remove(generation)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_the_loop_goes_on_while_a_newer_owner_waits(tmp_path):
    """The async gate waits without holding up the loop: the old request ends by itself meanwhile."""

    async def scene() -> list[str]:
        gate, told = aio.HostGate(tmp_path), []
        await gate.announce(token(7))
        inside, leave = asyncio.Event(), asyncio.Event()

        async def old() -> None:
            async with gate.enter(token(7)):
                inside.set()
                await leave.wait()
                told.append("7 left")

        async def new() -> None:
            await gate.announce(token(8))
            async with gate.enter(token(8)):
                told.append("8 inside")

        tasks = [asyncio.create_task(old())]
        await inside.wait()
        tasks.append(asyncio.create_task(new()))
        while True:
            try:
                await gate.check(token(7))
            except StaleToken:
                break
            await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*tasks)
        return told

    assert asyncio.run(scene()) == ["7 left", "8 inside"]


def test_whatever_moment_a_task_is_cancelled_in_no_lock_is_left(tmp_path):
    """A task that is cancelled while it announces, waits, or is inside keeps nobody out."""

    async def scene() -> None:
        gate = aio.HostGate(tmp_path, drain_timeout=30)
        generations = itertools.count(1)

        async def request(generation: int) -> None:
            await gate.announce(token(generation))
            async with gate.enter(token(generation)):
                await asyncio.sleep(0)

        for turns in range(60):
            task = asyncio.create_task(request(next(generations)))
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await request(next(generations))

    asyncio.run(scene())
    HostGate(tmp_path, drain_timeout=0).announce(token(1000))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/marks", "ext4"),
        ("/srv/mar", "xfs"),
        ("/srv/nfs/marks", "nfs4"),
        ("/srv/a b/marks", "tmpfs"),
        ("/run/twice", "tmpfs"),
    ],
)
def test_the_file_system_of_a_folder(path, kind):
    """The longest mount point above it, and of several on one place the last."""
    table = (
        "1 0 8:1 / / rw - xfs /dev/sda1 rw\n"
        "2 1 8:2 / /srv/marks rw shared:1 - ext4 /dev/sda2 rw\n"
        "3 1 0:9 / /srv/nfs rw - nfs4 host:/x rw\n"
        "4 1 0:8 / /srv/a\\040b rw - tmpfs none rw\n"
        "5 1 0:8 / /run rw - ext4 none rw\n"
        "6 1 0:8 / /run rw - tmpfs none rw\n"
    )
    assert mounts.file_system(path, table) == kind


def test_a_folder_in_memory_is_refused():
    """What a restart of the host forgets holds no marks."""
    if not os.path.isdir("/dev/shm"):
        pytest.skip("not run: no file system in memory here")
    with pytest.raises(NotEnforced, match="tmpfs"):
        HostGate("/dev/shm")


def test_a_host_that_does_not_tell_is_said(tmp_path, monkeypatch, caplog):
    """Where there is no table of mounts, the folder is taken, and the log says what it must be."""
    monkeypatch.setattr(Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    HostGate(tmp_path)
    assert "local disk" in caplog.text


@pytest.mark.parametrize("patience", [-1, float("nan"), float("inf")])
def test_a_drain_timeout_that_is_none(tmp_path, patience):
    """It is a number of seconds."""
    with pytest.raises(ValueError, match="drain_timeout"):
        HostGate(tmp_path, drain_timeout=patience)


def test_a_mark_that_is_not_durable_yet_lets_nobody_in(tmp_path, monkeypatch):
    """9 has written its mark and waits for the disk; 8 is done with waiting meanwhile: 9 isn't armed."""
    gate, fsync = HostGate(tmp_path), os.fsync
    gate.announce(token(7))
    disk, written = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        if threading.current_thread().name == "nine" and not disk.is_set():
            written.set()
            disk.wait()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    with gate.enter(token(7)):
        eight = gate.job(token(8)).announcing()
        assert next(eight) > 0
        nine = threading.Thread(target=lambda: gate.announce(token(9)), name="nine")
        nine.start()
        written.wait()
    assert list(eight) == []  # 7 has left, which is noted by 8
    with pytest.raises(NotArmed):
        gate.check(token(9))
    disk.set()
    nine.join()
    gate.check(token(9))


def test_a_mark_that_was_deleted_keeps_the_door_shut(tmp_path):
    """The other file of the job remembers that there was one: 7 is not let in as if it were the first."""
    gate = HostGate(tmp_path)
    gate.announce(token(9))
    (tmp_path / f"{NAME}.mark").unlink()
    for generation in (7, 9, 10):
        with pytest.raises(NotEnforced, match="has gone"):
            gate.announce(token(generation))


def test_a_folder_stays_where_it_was_named(tmp_path, monkeypatch):
    """A program that changes its directory afterwards keeps its marks and its answers; "" names none."""
    monkeypatch.chdir(tmp_path)
    gate = HostGate("gate")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    gate.announce(token(8))
    with gate.replay().claim(token(8), "k", "f") as claim:
        claim.keep("answer")
    assert {file.name for file in (tmp_path / "gate").iterdir()} >= {f"{NAME}.mark", "answers.sqlite"}
    assert list(Path().iterdir()) == []
    with pytest.raises(StaleToken):
        HostGate(tmp_path / "gate").announce(token(7))
    for make in (HostGate, aio.HostGate):
        with pytest.raises(ValueError, match="is empty"):
            make("")
