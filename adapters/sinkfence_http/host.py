"""A service's own host as the gate, by files and locks: for services with no database to check in."""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sinkfence.errors import NotArmed, NotEnforced
from sinkfence.marks import Mark, admit
from sinkfence.sinks import Watch
from sinkfence.tokens import Token
from sinkfence_http import files, mounts
from sinkfence_http.answers import IN_FLIGHT, Refused
from sinkfence_http.door import recognise
from sinkfence_http.host_replay import HostReplay
from sinkfence_http.passage import UNWATCHED


class HostGate:
    """A folder with two small files for each job, by which all processes of one host keep a stale owner out.

    A new owner's first request waits until those of earlier owners have been answered, at most for
    `drain_timeout` seconds: then it is refused with 503 `previous-owner-in-flight`. Marks are durable, and
    files are never deleted. Nothing is fenced that goes on after its request was answered (background tasks,
    statements under way in a database when its process is killed), and nothing on other hosts.

    Args:
        dir: a folder on a local disk, for this service alone; created if it isn't there. What replaces a
            container must find it again.
        drain_timeout: in seconds.

    Raises:
        NotEnforced: the folder is on a network file system, in memory, or on one that is not known.
        ValueError: dir is empty, or drain_timeout is not a number of seconds.
    """

    def __init__(self, dir: str | os.PathLike[str], *, drain_timeout: float = 10.0) -> None:
        if not (math.isfinite(drain_timeout) and drain_timeout >= 0):
            raise ValueError("drain_timeout is a number of seconds")
        if not os.fspath(dir):
            raise ValueError("dir is the name of a folder, and is empty")
        self._folder = Path(dir).absolute()  # where it was named: a program may change its directory
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounts.refuse_unfit(self._folder)
        self._drain_timeout = drain_timeout

    def check(self, token: Token) -> None:
        """Tell whether the token's owner is the newest, and its predecessors are done.

        Raises:
            NotArmed, StaleToken, GenerationConflict: it isn't, or they aren't.
        """
        self.job(token).check()

    def announce(self, token: Token) -> None:
        """Raise the mark, and wait until nobody of an earlier owner is inside.

        Raises:
            StaleToken, GenerationConflict: a newer owner was seen here.
        """
        for pause in self.job(token).announcing():
            time.sleep(pause)

    @contextmanager
    def enter(self, token: Token) -> Generator[Watch]:
        """Surround a request's handler: while it is inside, no newer owner gets in."""
        job = self.job(token)
        for pause in job.entering():
            time.sleep(pause)
        try:
            yield UNWATCHED
        finally:
            job.leave()

    def replay(self, max_body: int = 65536) -> HostReplay:
        """Keep answers in this folder, in a SQLite file, with bodies of at most `max_body` bytes."""
        return HostReplay(self._folder, max_body)

    def job(self, token: Token) -> Job:
        """Return the files of a token's job."""
        return Job(self._folder, token, self._drain_timeout)


class Job:
    """The files of one job, as one request uses them.

    `.mark` holds the mark; its lock is the mutex of those who raise it. `.inside` is locked shared by each
    request inside, and exclusively by a new owner's, once those have left. It holds the generation of the
    owner for whom that is done: 8, where all requests of 7 have left.
    """

    def __init__(self, folder: Path, token: Token, drain_timeout: float) -> None:
        name = hashlib.sha256(token.job_id.encode()).hexdigest()  # no job_id can leave the folder by its name
        self._folder = folder
        self._mark = f"{folder}/{name}.mark"
        self._inside = f"{folder}/{name}.inside"
        self._token = token
        self._drain_timeout = drain_timeout
        self._lock: files.LockedFile | None = None

    def check(self) -> None:
        """As `HostGate.check`."""
        recognise(self._token, self._read_mark())  # a mark that has gone is noticed where it would rise
        if self._drained() < self._token.generation:
            raise NotArmed(self._token, self._token.generation)

    def announcing(self) -> Iterator[float]:
        """Raise the mark, await earlier owners' requests, in steps; yields the seconds before the next."""
        with suppress(NotArmed):
            self.check()
            return
        pauses = self._pauses()
        # The mark first: else whoever comes while we wait for those inside would have to be waited for, too.
        while not self._raise():
            yield next(pauses)
        while self._drained() < self._token.generation and not self._drain():
            yield next(pauses)

    def entering(self) -> Iterator[float]:
        """Get inside, in steps; yields the seconds before the next."""
        pauses = self._pauses()
        while not self._enter():
            yield next(pauses)

    def leave(self) -> None:
        """Be inside no longer."""
        if self._lock is not None:
            files.unlock(self._lock)
            self._lock = None

    def _pauses(self) -> Iterator[float]:
        end, pause = time.monotonic() + self._drain_timeout, 0.001
        while time.monotonic() < end:
            yield pause
            pause = min(2 * pause, 0.05)
        raise Refused(IN_FLIGHT)

    def _raise(self) -> bool:
        """Write the mark and make it durable; False while another request has it locked."""
        with files.locked(self._mark, fcntl.LOCK_EX) as file:
            if file is None:
                return False
            data = os.pread(file.fd, 2 * files.SLOT, 0)
            place, mark = self._newest(data)
            if mark is None and self._drained():
                raise NotEnforced(f"{self._mark} has gone: a mark must never be deleted. Restore it")
            raised = admit(self._token, mark)
            # Also where it stands already: who has written it may have been killed before it was on the disk.
            # Never over the one that holds, of which nothing must be lost when the power goes.
            record = files.seal(f"{raised.generation} {raised.owner}")
            if os.pwrite(file.fd, record, files.SLOT - place) != files.SLOT:
                raise OSError(f"{self._mark} could not be written")
            os.fsync(file.fd)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def _drain(self) -> bool:
        """Note that earlier owners' requests have left; False while one is inside."""
        with files.locked(self._inside, fcntl.LOCK_EX) as file:
            if file is None:
                return False
            # Whoever gets in after this reads the mark after this: what is below it stays outside for ever.
            if self._read_mark() is None:
                raise NotEnforced(f"{self._mark} has gone: a mark must never be deleted")
            # Our own generation, and not a newer one that the mark may show: 9 has written it, and waits for
            # the disk. Were 9 noted here, its next request would get in before its mark is durable.
            os.pwrite(file.fd, files.seal(str(max(self._drained(), self._token.generation))), 0)
            return True

    def _enter(self) -> bool:
        # A new open file description each time: threads of one process exclude each other, too.
        lock = files.lock(self._inside, fcntl.LOCK_SH)
        if lock is None:
            return False
        try:
            # Lock, then read. The other way round:
            #   7: reads 7 | 8: raises the mark, finds nobody inside, enters | 7: locks, and is inside as well
            self.check()
        except BaseException:
            files.unlock(lock)
            raise
        self._lock = lock
        return True

    def _read_mark(self) -> Mark | None:
        try:
            return self._newest(files.read(self._mark))[1]
        except FileNotFoundError:
            return None

    def _newest(self, data: bytes) -> tuple[int, Mark | None]:
        """Return the newest mark that is whole, and its place: one may have been torn when the power went."""
        slots = [(place, files.unseal(data[place : place + files.SLOT])) for place in (0, files.SLOT)]
        whole = [(int(text.split(" ")[0]), place, text) for place, text in slots if text]
        if not whole and data.strip(b"\0"):
            raise NotEnforced(
                f"{self._mark} is damaged: restore it, or raise the lease store above what it held"
            )
        if not whole:
            return files.SLOT, None
        generation, place, text = max(whole)
        return place, Mark(generation, text.partition(" ")[2])

    def _drained(self) -> int:
        """Return the generation before which everybody has left, 0 where nobody was waited for yet."""
        try:
            return int(files.unseal(files.read(self._inside)) or 0)
        except FileNotFoundError:
            return 0
