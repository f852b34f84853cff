"""Writers that take jobs from each other, and go on when they are stale: `racer.py DSN GUARD COMMITS SEED`.

GUARD is the SQL function that checks: `sinkfence.guard`, or a simple one with the same parameters. At the end
it prints, as JSON, how many transactions were committed and refused, and how often a job was taken over.
"""

from __future__ import annotations

import collections
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

JOBS = ("a", "b", "c")
WRITERS = 2
BURST = 10
ISOLATION = ("read committed",) * 7 + ("repeatable read",) * 2 + ("serializable",)
ARM = "select sinkfence.arm('{job}', {generation}, 'racer:{generation}')"
WRITE = (
    "begin isolation level {isolation}; select {guard}('{job}', {generation}, 'racer:{generation}', {lock}); "
    "insert into effect (job, generation) values ('{job}', {generation}); "
)
REFUSALS = ("SF001", "40001")


class Writer:
    """Has two connections: while a transaction is open on the first, it writes by the second."""

    def __init__(self, dsn: str, guard: str, commits: int, seed: str) -> None:
        self.dsn, self.guard, self.commits = dsn, guard, commits
        self.random = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.generations: dict[str, int] = {}

    def run(self) -> None:
        with self.connect() as one, self.connect() as other:
            while self.counts["single"] + BURST * self.counts["bursts"] < self.commits:
                way = self.random.random()
                if not self.generations or way < 0.15:
                    self.arm(one, self.random.choice(JOBS))
                elif way < 0.35:
                    self.write_often(one)
                elif way < 0.45:
                    self.write(one)
                elif way < 0.9:
                    self.write_around(one, other)
                else:
                    self.write_with_a_lock(one)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True)

    def arm(self, conn: psycopg.Connection, job: str) -> None:
        [generation] = conn.execute("select nextval('generation')").fetchone()
        with self.refused(conn, job):
            conn.execute(ARM.format(job=job, generation=generation))
            self.generations[job] = generation
            self.counts["takeovers"] += 1

    def write(self, conn: psycopg.Connection) -> None:
        """In one message."""
        with self.refused(conn, job := self.job):
            conn.execute(self.statements(job) + "commit")
            self.counts["single"] += 1

    def write_often(self, conn: psycopg.Connection) -> None:
        """Several transactions, one after another inside the server."""
        with self.refused(conn, job := self.job):
            conn.execute(f"call burst('{job}', {self.generations[job]}, {BURST})")
            self.counts["bursts"] += 1

    def write_around(self, conn: psycopg.Connection, other: psycopg.Connection) -> None:
        """Open for as long as two others take, of this job or another."""
        with self.refused(conn, job := self.job):
            conn.execute(self.statements(job))
            for _ in range(2):
                if self.generations:
                    self.write(other)
            conn.execute("commit")
            self.counts["single"] += 1

    def write_with_a_lock(self, conn: psycopg.Connection) -> None:
        """In two messages, and nothing else between them: it might wait for an arm that waits for this."""
        with self.refused(conn, job := self.job):
            conn.execute(self.statements(job, lock=True))
            conn.execute("commit")
            self.counts["single"] += 1

    @property
    def job(self) -> str:
        """One of the jobs that it takes for its own."""
        return self.random.choice(list(self.generations))

    def statements(self, job: str, *, lock: bool = False) -> str:
        return WRITE.format(
            isolation=self.random.choice(ISOLATION),
            guard=self.guard,
            job=job,
            generation=self.generations[job],
            lock=lock,
        )

    @contextmanager
    def refused(self, conn: psycopg.Connection, job: str) -> Iterator[None]:
        """Count a refusal. The writer believes it mostly, and else goes on under its old number."""
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate not in REFUSALS:
                raise
            conn.execute("rollback")
            self.counts[error.sqlstate] += 1
            if self.random.random() < 0.7:
                self.generations.pop(job, None)


if __name__ == "__main__":
    dsn, guard, commits, seed = sys.argv[1:]
    writers = [Writer(dsn, guard, int(commits) // WRITERS, f"{seed} {number}") for number in range(WRITERS)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(Writer.run, writers))
    print(json.dumps(sum((writer.counts for writer in writers), collections.Counter())))
