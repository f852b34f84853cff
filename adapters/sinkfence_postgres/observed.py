"""Transactions of the user's own, followed to their end: which COMMIT was sent, and what was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from sinkfence_postgres import connections
from sinkfence_postgres.refusals import sqlstate
from sinkfence_postgres.watch import Guard

if TYPE_CHECKING:
    import sqlalchemy

_observed: Final[WeakKeyDictionary[Any, Guard]] = WeakKeyDictionary()
# By psycopg's connection, or SQLAlchemy's transaction. Keeps none from the garbage collector: what is
# dropped without close() goes back to its pool.


def observed(tx: Any) -> Guard:
    """Return the guard of a transaction of the user's own, which tells later on what became of it.

    Under SQLAlchemy the driver's connection isn't looked at afterwards: it may be closed then, or another's.
    """
    key: Any = tx if connections.is_psycopg(tx) else connections.core(tx).get_transaction()
    if (known := _observed.get(key)) and known.is_open():
        return known
    held = ref(key)
    if connections.is_psycopg(tx):
        guard = Guard(
            lambda: (conn := held()) is not None and connections.is_open(conn),
            aborted=lambda: connections.status(held()) == connections.INERROR,
            failed=lambda: (conn := held()) is None or bool(not conn.closed and conn.info.error_message),
            sent=True,
        )
    else:
        from sqlalchemy import event

        guard = Guard(lambda: (root := held()) is not None and root.is_active)
        for target, moment, hear in (
            (connections.core(tx), "commit", _committing),
            (connections.core(tx).dialect, "handle_error", _failing),
        ):
            if not event.contains(target, moment, hear):
                event.listen(target, moment, hear)
    _observed[key] = guard
    return guard


def _committing(conn: sqlalchemy.Connection) -> None:
    """Before COMMIT is sent: an aborted transaction is rolled back by it, and nobody is told."""
    guard, driver = _guard_on(conn), conn.connection.driver_connection
    if guard is None:
        return
    guard.undone = connections.status(driver) == connections.INERROR
    if guard.suspect and connections.status(driver) is None:  # asyncpg doesn't tell, but the server does
        try:
            conn.exec_driver_sql("SELECT 1")
        except Exception as exc:
            if sqlstate(exc) != "25P02":  # in_failed_sql_transaction
                raise
            guard.undone = True
    guard.sent = not guard.undone


def _failing(context: Any) -> None:
    """An error after COMMIT was sent is the answer to it; one before may have aborted the transaction."""
    if guard := _guard_on(context.connection):
        guard.refused, guard.suspect = guard.sent, True


def _guard_on(conn: sqlalchemy.Connection | None) -> Guard | None:
    root = None if conn is None else conn.get_transaction()
    return None if root is None else _observed.get(root)
