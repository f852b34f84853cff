"""Plans of several statements, written once for every kind of connection, and carried out on each."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sinkfence_postgres import connections
from sinkfence_postgres.statements import Query

if TYPE_CHECKING:
    from sinkfence_postgres.connections import AnyTx

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A statement for another connection to the same server, which stays open, in one transaction."""

    query: Query


Plan = Generator[Query | Elsewhere, list[Any], T]
"""Yields statements and is sent their rows. An error of the other connection is thrown into it."""


def carry_out(conn: AnyTx, plan: Plan[T], *, read_committed: bool = False) -> T:
    """Carry out a plan in the transaction that is open, or in one of its own: see `in_transaction`."""
    tx: Any = connections.expect(conn, *connections.KINDS)
    with ExitStack() as stack:
        stack.enter_context(in_transaction(tx, read_committed=read_committed))
        other: Any = None
        try:
            step = next(plan)
            while True:
                if isinstance(step, Query):
                    step = plan.send(connections.run(tx, step))
                    continue
                try:
                    other = other or stack.enter_context(another_connection(tx))
                    rows = connections.run(other, step.query)
                except Exception as exc:  # noqa: BLE001
                    step = plan.throw(exc)
                else:
                    step = plan.send(rows)
        except StopIteration as done:
            answer: T = done.value
            return answer


READ_COMMITTED: Final = Query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {}, rows=None)
"""Sent first, whatever isolation the session has: each statement then sees what is there by now."""


@contextmanager
def in_transaction(tx: Any, *, read_committed: bool) -> Generator[None]:
    """Join the transaction that is open, or begin one, in READ COMMITTED if so, and commit it."""
    joined = connections.is_open(tx)
    with nullcontext() if joined else connections.begun(tx):
        if not connections.autocommits(tx):
            if read_committed and not joined:
                connections.run(tx, READ_COMMITTED)
            yield
            return
        if connections.on_server(tx):  # the user has sent BEGIN as text, and commits: it may be guarded
            yield
            return
        # In autocommit SQLAlchemy sends no BEGIN: each statement would be a transaction of its own.
        connections.run(tx, Query("BEGIN ISOLATION LEVEL READ COMMITTED", {}, rows=None))
        try:
            yield
        except BaseException:
            connections.run(tx, Query("ROLLBACK", {}, rows=None))
            raise
        connections.run(tx, Query("COMMIT", {}, rows=None))


@contextmanager
def another_connection(tx: Any) -> Generator[Any]:
    """Open another connection to the same server as this one was opened, and close it."""
    if connections.is_psycopg(tx):
        import psycopg

        with psycopg.connect(**address(tx)) as conn:
            yield conn
        return
    from sqlalchemy.engine import Engine

    # A pool of its own, with the engine's way to connect and its listeners: the engine's may be exhausted.
    engine = connections.core(tx).engine
    engine = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    try:
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as conn:
            yield conn
    finally:
        engine.dispose()


def address(tx: Any) -> dict[str, Any]:
    """Return how to reach the very server that this connection of psycopg is at, of several that it had."""
    info = tx.info
    there = {
        "host": info.host,
        "hostaddr": info.hostaddr or None,
        "port": info.port,
        "password": info.password,
    }
    return {"conninfo": info.dsn, **there}
