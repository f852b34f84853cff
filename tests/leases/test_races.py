"""Two or three act on one lease at once, hundreds of times: who was let in last is never undone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from sinkfence import LeaseLost
from sinkfence.grants import Grant
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.tokens import Token

ROUNDS = int(os.environ.get("SINKFENCE_TEST_ROUNDS", "24"))
"""Of each race, each on a job of its own."""
Call = tuple[Any, ...]
"""The name of a store's call, and its arguments."""


class Threads:
    """Callers that are threads, behind a barrier each time."""

    def __init__(self, url: str, callers: int) -> None:
        self.store = SqlStore(url)
        self.barrier = threading.Barrier(callers)
        self.pool = ThreadPoolExecutor(callers)

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self.store, name)(*args)

    def at_once(self, *calls: Call) -> list[Any]:
        return list(self.pool.map(self.wait_and_call, calls))

    def wait_and_call(self, call: Call) -> Any:
        self.barrier.wait(60)
        try:
            return self.call(*call)
        except Exception as error:
            return error

    def close(self) -> None:
        self.pool.shutdown()
        self.store.close()


class Loop:
    """Callers that are tasks of one event loop."""

    def __init__(self, url: str, callers: int) -> None:
        self.store = sql_aio.SqlStore(url)
        self.runner = asyncio.Runner()

    def call(self, name: str, *args: Any) -> Any:
        return self.runner.run(getattr(self.store, name)(*args))

    def at_once(self, *calls: Call) -> list[Any]:
        async def gathered() -> list[Any]:
            asking = (getattr(self.store, name)(*args) for name, *args in calls)
            return await asyncio.gather(*asking, return_exceptions=True)

        return self.runner.run(gathered())

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.fixture(params=["threads", "threads, sqlite", "psycopg", "asyncpg", "sqlite"])
def place(request: pytest.FixtureRequest) -> tuple[type[Threads | Loop], str]:
    """Each kind of caller, at each kind of store."""
    if "sqlite" in request.param:
        url = request.getfixturevalue("lite_url")
    else:
        driver = "psycopg" if request.param == "threads" else request.param
        url = request.getfixturevalue("pg_url").replace("postgresql:", f"postgresql+{driver}:")
    return (Threads if "threads" in request.param else Loop), url


@pytest.fixture
def callers(place: tuple[type[Threads | Loop], str]) -> Iterator[Callable[[int], Threads | Loop]]:
    """Makes so many callers of the store."""
    made: list[Threads | Loop] = []

    def make(many: int) -> Threads | Loop:
        made.append(place[0](place[1], many))
        return made[-1]

    yield make
    for each in made:
        each.close()


def expired(callers: Threads | Loop, jobs: list[str]) -> list[Token]:
    """A's tokens, after their leases have run out by the store's clock."""
    tokens = [callers.call("acquire", job, f"a:{job}", 0.05).token for job in jobs]
    while callers.call("get", jobs[-1]).remaining > 0:
        pass
    return tokens


LOGGED = """
CREATE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO finished VALUES (NEW.job_id, NEW.generation); RETURN NULL; END $$;
CREATE TRIGGER logs AFTER UPDATE ON sinkfence_lease
FOR EACH ROW WHEN (NEW.state = 'done') EXECUTE FUNCTION logs();
"""
LOGGED_LITE = """
CREATE TRIGGER logs AFTER UPDATE ON sinkfence_lease WHEN NEW.state = 'done'
BEGIN INSERT INTO finished VALUES (NEW.job_id, NEW.generation); END;
"""


@pytest.fixture
def finished(place: tuple[type, str]) -> Iterator[Callable[[], list[tuple[str, int]]]]:
    """Tells each time that a job was recorded as done: by a trigger, and not as the store tells it."""
    table, query = "CREATE TABLE finished (job_id text, generation bigint);", "SELECT * FROM finished"
    if place[1].startswith("sqlite"):
        lite = sqlite3.connect(place[1].removeprefix("sqlite:///"))
        lite.executescript(table + LOGGED_LITE)
        yield lambda: lite.execute(query).fetchall()
        lite.close()
        return
    with psycopg.connect("postgresql:" + place[1].partition(":")[2], autocommit=True) as conn:
        conn.execute("DROP TABLE IF EXISTS finished; DROP FUNCTION IF EXISTS logs")
        conn.execute(table + LOGGED)
        yield lambda: conn.execute(query).fetchall()
        conn.execute("DROP TABLE finished; DROP FUNCTION logs CASCADE")


def test_a_predecessor_and_the_owner_complete_at_once(
    callers: Callable[[int], Threads | Loop], finished: Callable[[], list[tuple[str, int]]]
) -> None:
    """C01: of two completions one succeeds, the newest owner's, and what is final is written once."""
    two, jobs = callers(2), [f"job {n}" for n in range(ROUNDS)]
    for turn, (job, a) in enumerate(zip(jobs, expired(two, jobs), strict=True)):
        b = two.call("acquire", job, f"b:{job}", 60.0).token
        both = [("complete", a, '"a"'), ("complete", b, '"b"')]
        first = turn % 2  # whoever comes first has a small start
        answers = two.at_once(*both[first:], *both[:first])
        assert isinstance(answers[-first], LeaseLost), answers
        assert answers[1 - first] is None
    done = [
        (record.job_id, record.state, record.result, record.generation) for record in two.call("list", "")
    ]
    assert done == [(job, "done", "b", 2) for job in sorted(jobs)]
    assert sorted(finished()) == [(job, 2) for job in sorted(jobs)]


def test_cleaners_cannot_take_a_new_owners_turn(callers: Callable[[int], Threads | Loop]) -> None:
    """C20: the predecessor's release and an operator's act never undo an acquisition, nor issue its number.

    An operator who frees a job frees it, whoever has it: then C is told so, and the next number is higher.
    """
    three, jobs = callers(3), [f"job {n}" for n in range(ROUNDS)]
    seen: Counter[str] = Counter()
    for turn, (job, a) in enumerate(zip(jobs, expired(three, jobs), strict=True)):
        operator = [("release", a), ("reopen", job), ("raise_above", job, 1), ("raise_above", job, 4)][
            turn % 4
        ]
        calls = [("release", a), ("acquire", job, f"c:{job}", 60.0), operator]
        first = turn // 4 % 3
        answers = three.at_once(*calls[first:], *calls[:first])
        c = answers[(1 - first) % 3]
        assert isinstance(c, Grant), answers
        record = three.call("get", job)
        raised = operator == ("raise_above", job, 4)
        assert c.token.generation in ((2, 5) if raised else (2,))
        assert record.generation == max(c.token.generation, 4 if raised else 0)
        if record.owner == c.token.owner:
            seen["kept"] += 1
            three.call("renew", c.token, 60.0)
            three.call("release", c.token)
        else:
            assert operator[0] != "release", "a cleaner has undone an acquisition"
            assert record.owner is None
            seen["freed by the operator"] += 1
            with pytest.raises(LeaseLost):
                three.call("renew", c.token, 60.0)
        assert three.call("acquire", job, f"d:{job}", 60.0).token.generation == record.generation + 1
    assert seen["kept"] >= ROUNDS // 4
