"""A record that is still the token's and open, though a statement found nothing to change: no loss."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sinkfence.errors import Conflict, NotEnforced
from sinkfence.stores.sql import SqlStore
from sinkfence.stores.sql import aio as sql_aio
from sinkfence.tokens import Token

JOB = "invoice-42"
CALLS: dict[str, Callable[[Any, Token], Any]] = {
    "renew": lambda store, token: store.renew(token, 30.0),
    "complete": lambda store, token: store.complete(token, "[1]"),
    "release": lambda store, token: store.release(token),
    "reacquire_above": lambda store, token: store.reacquire_above(token, 5, "a:2", 30.0),
}
BLOCKED = """
    SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'relation'
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@pytest.mark.parametrize("call", CALLS)
def test_a_snapshot_from_before_a_rewrite_proves_no_loss(
    pg: SqlStore, pg_url: str, admin: psycopg.Connection, call: str
) -> None:
    """At repeatable read, a table that is rewritten while a call waits looks empty: it is asked again."""
    admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_isolation = 'repeatable read'")
    strict = SqlStore(pg_url)
    try:
        token = strict.acquire(JOB, "a:1", 30.0).token
    finally:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} RESET default_transaction_isolation")
    errors: list[BaseException] = []

    def run() -> None:
        try:
            CALLS[call](strict, token)
        except BaseException as error:
            errors.append(error)

    with psycopg.connect(pg_url) as other:
        other.execute("ALTER TABLE sinkfence_lease ALTER result TYPE json USING result::text::json")
        thread = threading.Thread(target=run)
        thread.start()
        while not admin.execute(BLOCKED).fetchone():
            assert thread.is_alive(), errors
        other.commit()
    thread.join()
    strict.close()
    assert errors == []
    found = pg.get(JOB)
    assert (found.generation, found.owner, found.state) == {
        "renew": (1, "a:1", "open"),
        "complete": (1, "a:1", "done"),
        "release": (1, None, "open"),
        "reacquire_above": (6, "a:2", "open"),
    }[call]


@pytest.fixture
def looker(pg: SqlStore, admin: psycopg.Connection) -> Iterator[str]:
    """The URL of a role that row level security lets read and insert, and change nothing."""
    name = sql.Identifier(role := f"{admin.info.dbname}_looker")

    def do(words: str) -> None:
        admin.execute(sql.SQL(words).format(name))

    do("CREATE ROLE {} LOGIN PASSWORD 'x'")
    do("GRANT SELECT, INSERT, UPDATE ON sinkfence_lease TO {}")
    do("GRANT SELECT ON sinkfence_schema TO {}")
    do("ALTER TABLE sinkfence_lease ENABLE ROW LEVEL SECURITY")
    do("CREATE POLICY look ON sinkfence_lease FOR SELECT TO {} USING (true)")
    do("CREATE POLICY come ON sinkfence_lease FOR INSERT TO {} WITH CHECK (true)")
    yield f"postgresql://{role}:x@{admin.info.host}:{admin.info.port}/{admin.info.dbname}"
    do("DROP OWNED BY {}")
    do("DROP ROLE {}")


@pytest.mark.parametrize("call", CALLS)
def test_a_role_that_may_change_nothing_is_told_so(looker: str, pg: SqlStore, call: str) -> None:
    """What row level security hides from UPDATE is not lost: the error says what to grant."""
    store = SqlStore(looker)
    token = store.acquire(JOB, "a:1", 30.0).token
    with pytest.raises(NotEnforced, match="row level security"):
        CALLS[call](store, token)
    store.close()
    assert (pg.get(JOB).owner, pg.get(JOB).state) == ("a:1", "open")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_loop_is_told_the_same(looker: str, driver: str) -> None:
    """The same of the store for an event loop."""

    async def main() -> None:
        store = sql_aio.SqlStore(looker.replace("postgresql:", f"postgresql+{driver}:"))
        token = (await store.acquire(JOB, "a:1", 30.0)).token
        try:
            with pytest.raises(NotEnforced, match="row level security"):
                await store.renew(token, 30.0)
        finally:
            await store.close()

    asyncio.run(main())


def test_in_the_callers_transaction_it_is_the_callers_to_repeat(looker: str) -> None:
    """There it is a Conflict, as what else a transaction of theirs cannot see."""
    store = SqlStore(looker)
    token = store.acquire(JOB, "a:1", 30.0).token
    with psycopg.connect(looker) as theirs, pytest.raises(Conflict, match="still there and open"):
        store.renew(token, 30.0, theirs)
    store.close()


def test_of_two_tokens_of_one_number_the_owner_tells(pg: SqlStore, admin: psycopg.Connection) -> None:
    """A store that went back has issued a number twice: a batch extends its owner's lease alone."""
    old = pg.acquire(JOB, "a:1", 30.0).token
    admin.execute("DROP TABLE sinkfence_lease, sinkfence_schema")
    pg.create_schema()
    new = pg.acquire(JOB, "b:2", 30.0).token
    assert old.generation == new.generation
    for both in ((old, new), (new, old)):
        answer = pg.renew_many([(token, 30.0) for token in both])
        assert set(answer.renewed) == {new}
        assert set(answer.lost) == {old}
