"""The user's own guarded transactions, followed to their end: was COMMIT sent, and what was answered?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from sinkfence_postgres import connections
from sinkfence_postgres.refusals import sqlstate
from sinkfence_postgres.watch import GuardedTransaction, Outcome

if TYPE_CHECKING:
    import sqlalchemy


class PsycopgTransaction:
    """Known by its connection alone, which may begin another, and doesn't tell COMMIT from ROLLBACK."""

    def __init__(self, conn: Any) -> None:
        self._conn = ref(conn)
        self._ended = False

    def is_open(self) -> bool:
        conn = self._conn()
        self._ended = self._ended or conn is None or not connections.is_open(conn)
        return not self._ended

    def is_aborted(self) -> bool:
        return connections.status(self._conn()) == connections.INERROR

    def outcome(self) -> Outcome:
        conn = self._conn()
        failed = conn is None or (not conn.closed and conn.info.error_message)
        return "commit failed" if failed else "committed"


class SQLAlchemyTransaction:
    """Known by SQLAlchemy's object. The driver's connection may be closed afterwards, or another's."""

    def __init__(self, root: sqlalchemy.RootTransaction) -> None:
        self._root = ref(root)
        self.has_failed = False
        """Whether a statement has failed: it may be aborted."""
        self.known: Outcome = "no commit"

    def is_open(self) -> bool:
        root = self._root()
        return root is not None and root.is_active

    def is_aborted(self) -> bool:
        return False  # that is looked at where COMMIT is sent: until then a savepoint may mend it

    def outcome(self) -> Outcome:
        return self.known


_followed: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
# By psycopg's connection, or SQLAlchemy's transaction. Keeps none from the garbage collector: what is
# dropped without close() goes back to its pool.


def follow(tx: Any) -> GuardedTransaction:
    """Return the transaction that is open here, and have it find out what becomes of it."""
    key: Any = tx if connections.is_psycopg(tx) else connections.core(tx).get_transaction()
    known: GuardedTransaction | None = _followed.get(key)
    if known and known.is_open():
        return known
    if connections.is_psycopg(tx):
        known = _followed[key] = PsycopgTransaction(key)
        return known
    from sqlalchemy import event

    conn = connections.core(tx)
    for target, name, listener in (
        (conn, "commit", _committing),
        (conn.dialect, "handle_error", failing),
    ):
        if not event.contains(target, name, listener):
            event.listen(target, name, listener)
    known = _followed[key] = SQLAlchemyTransaction(key)
    return known


def _committing(conn: sqlalchemy.Connection) -> None:
    """Before COMMIT is sent: an aborted transaction is rolled back by it, and nobody is told."""
    transaction, status = _followed_on(conn), connections.status(conn.connection.driver_connection)
    if transaction is None:
        return
    aborted = status == connections.INERROR
    if transaction.has_failed and status is None:  # asyncpg doesn't tell, but the server does
        try:
            conn.exec_driver_sql("SELECT 1")
        except Exception as exc:
            if sqlstate(exc) != "25P02":  # in_failed_sql_transaction
                raise
            aborted = True
    transaction.known = "rolled back by commit" if aborted else "committed"  # unless an error comes


def failing(context: Any) -> None:
    """An error after COMMIT was sent is the answer to it; one before may have aborted the transaction."""
    if transaction := _followed_on(context.connection):
        transaction.has_failed = True
        if transaction.known == "committed":
            transaction.known = "commit failed"


def _followed_on(conn: sqlalchemy.Connection | None) -> SQLAlchemyTransaction | None:
    root = None if conn is None else conn.get_transaction()
    return None if root is None else _followed.get(root)
