"""What is asked of a server in several statements, written once for every kind of connection."""

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
"""Yields statements and is sent their rows; that another connection could not be had is thrown into it."""


def ask(conn: AnyTx, plan: Plan[T], *, afresh: bool = False) -> T:
    """Carry out a plan in the transaction that is open, or in one that is committed here, as `within`."""
    tx: Any = connections.expect(conn, *connections.KINDS)
    with ExitStack() as stack:
        stack.enter_context(within(tx, afresh=afresh))
        other: Any = None
        try:
            step = next(plan)
            while True:
                if isinstance(step, Query):
                    step = plan.send(connections.run(tx, step))
                    continue
                try:
                    other = other or stack.enter_context(another(tx))
                    rows = connections.run(other, step.query)
                except Exception as exc:  # noqa: BLE001
                    step = plan.throw(exc)
                else:
                    step = plan.send(rows)
        except StopIteration as done:
            answer: T = done.value
            return answer


READ_COMMITTED: Final = Query("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {}, rows=None)
"""First in a transaction, whatever isolation the session has: each look is at what is there now."""


@contextmanager
def within(tx: Any, *, afresh: bool) -> Generator[None]:
    """Go into the transaction that is open, or begin one and commit it; `afresh`: in READ COMMITTED."""
    joined = connections.is_open(tx)
    with nullcontext() if joined else connections.begun(tx):
        if not connections.autocommits(tx):
            if afresh and not joined:
                connections.run(tx, READ_COMMITTED)
            yield
            return
        if connections.on_server(tx):  # begun as text, the user's own to commit: it may be a guarded one
            yield
            return
        # SQLAlchemy's own transaction is none there, and each statement would be one.
        connections.run(tx, Query("BEGIN ISOLATION LEVEL READ COMMITTED", {}, rows=None))
        try:
            yield
        except BaseException:
            connections.run(tx, Query("ROLLBACK", {}, rows=None))
            raise
        connections.run(tx, Query("COMMIT", {}, rows=None))


@contextmanager
def another(tx: Any) -> Generator[Any]:
    """Open another connection as this one was, and close it."""
    if connections.is_psycopg(tx):
        import psycopg

        with psycopg.connect(**address(tx)) as conn:
            yield conn
        return
    from sqlalchemy.engine import Engine

    # By the engine's own creator, with all that its listeners add; not from its pool, which may have no more.
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
